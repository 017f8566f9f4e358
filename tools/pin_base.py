# ruff: noqa: INP001, S310 - a script, no package; it talks to the registry that it is given
"""Writes the digest of the base image's tag into the Dockerfile: `python tools/pin_base.py`.

    --registry URL   another registry than Docker's, such as a mirror
    --file FILE      another Dockerfile

The digest is that of what the registry sends, computed here; that it says the same is checked.
"""

import argparse
import hashlib
import json
import re
import sys
import urllib.error
import urllib.request
from pathlib import Path

HUB = "https://registry-1.docker.io"
LINE = re.compile(
    r"^ARG BASE=(?P<name>[a-z0-9./_-]+):(?P<tag>[\w.-]+)(@sha256:[0-9a-f]{64})?$", re.MULTILINE
)
INDEXES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
"""An image for several architectures, whose digest holds for each of them."""
UNAUTHORIZED = 401


def main() -> None:
    """Pin the base image; exits with a sentence if that cannot be done."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--registry", default=HUB)
    parser.add_argument("--file", type=Path, default=Path(__file__).parent.parent / "Dockerfile")
    options = parser.parse_args()
    text = options.file.read_text(encoding="utf-8")
    if not (line := LINE.search(text)):
        sys.exit(f"{options.file} has no line ARG BASE=NAME:TAG")
    name, tag = line["name"], line["tag"]
    try:
        digest = _digest(options.registry, name if "/" in name else f"library/{name}", tag)
    except (OSError, ValueError) as error:
        sys.exit(f"the digest of {name}:{tag} cannot be had from {options.registry}: {error}")
    pinned = f"ARG BASE={name}:{tag}@{digest}"
    options.file.write_text(text.replace(line[0], pinned), encoding="utf-8")
    print(pinned)  # noqa: T201


def _digest(registry: str, name: str, tag: str) -> str:
    """Ask a registry for the digest of a tag's index. Raises `OSError`, `ValueError`."""
    asked = urllib.request.Request(f"{registry}/v2/{name}/manifests/{tag}")
    asked.add_header("Accept", ", ".join(INDEXES))
    try:
        reply = urllib.request.urlopen(asked, timeout=30)
    except urllib.error.HTTPError as error:
        if error.code != UNAUTHORIZED:
            raise
        asked.add_header("Authorization", f"Bearer {_token(error.headers['WWW-Authenticate'])}")
        reply = urllib.request.urlopen(asked, timeout=30)
    with reply:
        body, said = reply.read(), reply.headers.get("Docker-Content-Digest")
        kind = reply.headers.get_content_type()
    if kind not in INDEXES:
        raise ValueError(f"it is {kind}, and no index of images")
    digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
    if said != digest:
        raise ValueError(f"the registry says {said}, and what it sends is {digest}")
    return digest


def _token(challenge: str | None) -> str:
    """Get the token that everybody may have, as the registry's challenge says."""
    fields = dict(re.findall(r'(\w+)="([^"]*)"', challenge or ""))
    if "realm" not in fields:
        raise ValueError("the registry wants credentials")
    query = "&".join(f"{key}={fields[key]}" for key in ("service", "scope") if key in fields)
    with urllib.request.urlopen(f"{fields['realm']}?{query}", timeout=30) as reply:
        token: str = json.load(reply)["token"]
    return token


if __name__ == "__main__":
    main()
