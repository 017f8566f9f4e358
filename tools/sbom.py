# ruff: noqa: INP001 - a script, no package
"""Makes a bill of materials (CycloneDX 1.5) of uv's own: `uv export … | python tools/sbom.py`.

    --installed   only what this Python has installed; an error if the lock does not name some of it
    --debian      also the packages of Debian, and Python itself

The same packages give the same bytes: time and serial number are left out.
"""

import argparse
import importlib.metadata
import json
import platform
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, TypeAlias
from urllib.parse import quote

Component: TypeAlias = dict[str, Any]
OURS = "diptych"


def main() -> None:
    """Read a bill on standard input, write one on standard output."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--installed", action="store_true")
    parser.add_argument("--debian", action="store_true")
    options = parser.parse_args()
    bill = json.load(sys.stdin)
    bill.pop("serialNumber", None)
    bill["metadata"].pop("timestamp", None)
    ours = bill["metadata"]["component"]
    ours |= {"type": "application", "purl": f"pkg:pypi/{OURS}@{ours['version']}"}
    if options.installed:
        _keep_installed(bill)
    if options.debian:
        bill["components"] += [_python(), *_debian()]
    json.dump(bill, sys.stdout, indent=1, sort_keys=True)


def _keep_installed(bill: dict[str, Any]) -> None:
    """Leave out what the lock names for other platforms. Exits if something is not locked."""
    installed = {
        (dist.name.lower().replace("_", "-").replace(".", "-"), dist.version): dist
        for dist in importlib.metadata.distributions()
    }
    locked = {(part["name"], part["version"]): part for part in bill["components"]}
    if unknown := [name for name in installed if name not in locked and name[0] != OURS]:
        sys.exit(f"installed, and not in uv.lock: {sorted(unknown)}")
    bill["components"] = [part for name, part in locked.items() if name in installed]
    for part in bill["components"]:
        licence = installed[part["name"], part["version"]].metadata.get("License-Expression")
        if licence:
            part["licenses"] = [{"expression": licence}]
    refs = {part["bom-ref"] for part in (bill["metadata"]["component"], *bill["components"])}
    bill["dependencies"] = [
        {**entry, "dependsOn": [ref for ref in entry.get("dependsOn", ()) if ref in refs]}
        for entry in bill.get("dependencies", ())
        if entry["ref"] in refs
    ]


def _python() -> Component:
    version = platform.python_version()
    purl = f"pkg:generic/python@{version}"
    return _component("platform", "python", version, purl)


def _debian() -> Iterator[Component]:
    shown = "${Package} ${Version} ${Architecture}\n"
    told = subprocess.run(  # noqa: S603
        ["dpkg-query", "--show", f"--showformat={shown}"],  # noqa: S607
        capture_output=True,
        text=True,
        check=True,
    )
    for line in sorted(told.stdout.splitlines()):
        name, version, architecture = line.split()
        purl = f"pkg:deb/debian/{quote(name)}@{quote(version, safe='')}?arch={architecture}"
        yield _component("library", name, version, purl)


def _component(kind: str, name: str, version: str, purl: str) -> Component:
    return {"type": kind, "name": name, "version": version, "purl": purl, "bom-ref": purl}


if __name__ == "__main__":
    main()
