"""What goes into the image is locked and named."""

import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
LOCK = tomllib.loads((ROOT / "uv.lock").read_text())
UV = shutil.which("uv", path=str(BIN)) or shutil.which("uv")
needs_uv = pytest.mark.skipif(UV is None, reason="uv is not here: THE TOOLS DID NOT RUN")
VALIDATE = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
found = JsonStrictValidator(SchemaVersion.V1_5).validate_str(sys.stdin.read())
print(found or "valid")
"""


@pytest.fixture(scope="module")
def exported() -> str:
    assert UV
    bill = ("--format", "cyclonedx1.5", "--preview-features", "sbom-export")
    scope = ("--quiet", "--frozen", "--no-dev", "--extra", "operator")
    command = [UV, "export", *scope, *bill]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def bill_of(exported: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "sbom.py"), *options]
    return subprocess.run(command, input=exported, capture_output=True, text=True, check=False)


@needs_uv
def test_the_bill_names_what_is_locked_with_its_hashes(exported):
    bill = json.loads(bill_of(exported).stdout)
    locked = {(package["name"], package["version"]) for package in LOCK["package"]}
    named = {(part["name"], part["version"]) for part in bill["components"]}
    assert {("aiohttp"), ("kopf"), ("redis")} <= {name for name, _ in named}
    assert "pytest" not in {name for name, _ in named}
    assert named <= locked
    assert bill["metadata"]["component"]["purl"].startswith("pkg:pypi/diptych@")
    for part in bill["components"]:
        assert part["purl"] == f"pkg:pypi/{part['name']}@{part['version']}"
        assert all(file["hashes"] for file in part["externalReferences"])


@needs_uv
def test_the_bill_of_an_environment_names_what_is_installed_and_nothing_else(exported):
    """This environment has tools for development, too, which the export does not name."""
    told = bill_of(exported, "--installed")
    assert told.returncode == 1
    assert told.stderr.startswith("installed, and not in uv.lock: [")
    whole = json.loads(exported)
    for dist in importlib.metadata.distributions():
        name = re.sub(r"[-_.]+", "-", dist.name.lower())
        part = {"type": "library", "name": name, "version": dist.version, "bom-ref": name}
        whole["components"].append(part)
    told = bill_of(json.dumps(whole), "--installed")
    assert told.returncode == 0, told.stderr
    bill = json.loads(told.stdout)
    names = [part["name"] for part in bill["components"]]
    assert "aiohttp" in names
    assert "pywin32" not in names  # which is locked for Windows alone
    assert any("licenses" in part for part in bill["components"])
    refs = {part["bom-ref"] for part in [bill["metadata"]["component"], *bill["components"]]}
    assert {ref for entry in bill["dependencies"] for ref in entry.get("dependsOn", ())} <= refs


@needs_uv
@pytest.mark.skipif(not shutil.which("dpkg-query"), reason="this is no Debian: NOT TRIED")
def test_the_bill_of_an_image_is_valid_and_names_debians_packages(exported):
    bill = json.loads(bill_of(exported, "--debian").stdout)
    names = {part["purl"].partition("@")[0] for part in bill["components"]}
    assert {"pkg:deb/debian/libc6", "pkg:generic/python", "pkg:pypi/aiohttp"} <= names
    # The validator takes minutes for all the addresses of all files: three parts of each kind do.
    bill["components"] = bill["components"][:3] + bill["components"][-3:]
    refs = {part["bom-ref"] for part in bill["components"]}
    bill["dependencies"] = [{"ref": ref} for ref in sorted(refs)]
    for part in bill["components"]:
        part["externalReferences"] = part.get("externalReferences", [])[:1]
    run = [UV, "run", "--quiet", "--isolated", "--no-project"]
    run += ["--with", "cyclonedx-python-lib[json-validation]==11.12.0", "python", "-c", VALIDATE]
    checked = subprocess.run(
        run, input=json.dumps(bill), capture_output=True, text=True, check=False
    )
    if "No solution found" in checked.stderr or "error sending" in checked.stderr:
        pytest.skip("the validator cannot be had: THE BILL WAS NOT VALIDATED")
    assert checked.stdout.strip() == "valid", checked.stderr


def test_everything_that_the_image_installs_has_a_hash():
    lines = (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    commands = [
        part.strip() for line in lines if line.startswith("RUN ") for part in line.split("&&")
    ]
    installs = [c for c in commands if re.search(r"pip install|uv sync|apt|curl|wget", c)]
    for command in installs:
        assert re.search(r"--require-hashes|--frozen|--no-deps /wheel/", command), command
    assert any("--no-build-isolation" in command for command in commands)
    pins = (ROOT / "tools" / "uv.txt").read_text()
    assert re.findall(r"^[a-z].*", pins, re.MULTILINE) == ["uv==0.13.9 \\"]
    assert len(re.findall(r"--hash=sha256:[0-9a-f]{64}", pins)) > 10
    for package in LOCK["package"]:
        files = [*package.get("wheels", ()), *([package["sdist"]] if "sdist" in package else ())]
        assert all(file["hash"].startswith("sha256:") for file in files), package["name"]
