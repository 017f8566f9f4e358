"""The operator's chart as a helm release: its chart, the deployed revision, an upgrade."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import orjson
import yaml

from diptych.cli.cluster.errors import ClusterError
from diptych.cli.cluster.flags import ClusterFlags
from diptych.cli.cluster.programs import find_program, run_program
from diptych.errors import ConfigError

RELEASE = "diptych"
_TIMEOUT_SECONDS = 300.0
_NOT_FOUND = "release: not found"


@dataclass(frozen=True, slots=True)
class DeployedRelease:
    """The newest revision of a release; `manifest` is its objects as YAML."""

    version: str
    status: str
    revision: int
    manifest: str


@dataclass(frozen=True, slots=True)
class ReleaseValues:
    """The chart's values as they were typed; `reuse` keeps those of earlier installs."""

    image: str | None = None
    values: Sequence[Path] = ()
    settings: Sequence[str] = ()
    reuse: bool = True

    @property
    def as_arguments(self) -> list[str]:
        """Give the values as flags of helm. Raises `ConfigError`."""
        files = [f"--values={_existing_file(path)}" for path in self.values]
        image = [f"--set-string={setting}" for setting in _image_values(self.image)]
        settings = [f"--set={setting}" for setting in map(_checked_setting, self.settings)]
        earlier = "--reset-then-reuse-values" if self.reuse else "--reset-values"
        return [*files, *image, *settings, earlier]


class Release:
    """The operator's release in one namespace; all methods raise `ClusterError`, `ConfigError`."""

    def __init__(self, flags: ClusterFlags, chart: Path) -> None:
        self.flags = flags
        self._chart = chart
        self.version: str = yaml.safe_load((chart / "Chart.yaml").read_text())["version"]

    def deployed(self) -> DeployedRelease | None:
        """Read the newest revision; None if nothing is installed."""
        try:
            metadata = orjson.loads(self._helm("get", "metadata", RELEASE, "--output=json"))
        except ClusterError as error:
            if _NOT_FOUND in str(error):
                return None
            raise
        manifest = self._helm("get", "manifest", RELEASE)
        return DeployedRelease(
            metadata["version"], metadata["status"], metadata["revision"], manifest
        )

    def dry_run(self, values: ReleaseValues) -> str:
        """Give the objects that an install would create, as YAML; it changes nothing."""
        manifest: str = self._upgrade(values, "--dry-run=server")["manifest"]
        return manifest

    def install(self, values: ReleaseValues) -> int:
        """Install or upgrade; give the revision of the release."""
        revision: int = self._upgrade(values, "--create-namespace")["version"]
        return revision

    def _upgrade(self, values: ReleaseValues, *arguments: str) -> Mapping[str, Any]:
        release: Mapping[str, Any] = orjson.loads(
            self._helm(
                *("upgrade", RELEASE, str(self._chart), "--install", "--output=json"),
                *values.as_arguments,
                *arguments,
            )
        )
        return release

    def _helm(self, *arguments: str) -> str:
        flags = self.flags
        command = [find_program("helm"), *arguments, f"--namespace={flags.namespace}"]
        command += [f"--kubeconfig={flags.kubeconfig}"] if flags.kubeconfig else []
        command += [f"--kube-context={flags.context}"] if flags.context else []
        return run_program(command, _TIMEOUT_SECONDS)


@contextmanager
def packaged_chart() -> Iterator[Path]:
    """Give the chart's folder while a block lasts.

    A wheel contains it; a checkout has it beside `app/`. The container image has neither, and
    raises `ConfigError`.
    """
    in_wheel = files("diptych") / "chart"
    in_checkout = Path(__file__).parents[4] / "charts" / "diptych"
    if in_wheel.joinpath("Chart.yaml").is_file():
        with as_file(in_wheel) as folder:
            yield folder
    elif (in_checkout / "Chart.yaml").is_file():
        yield in_checkout
    else:
        raise ConfigError(
            "the chart is not part of this installation; use one made by `pip install diptych`"
        )


def is_newer(version: str, than: str) -> bool:
    """Whether a version comes after another one; false if either cannot be read."""
    try:
        return _numbers(version) > _numbers(than)
    except ValueError:
        return False


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.lstrip("v").partition("-")[0].split(".")]


def _image_values(image: str | None) -> Iterator[str]:
    """Split `registry:5000/diptych:1.2@sha256:…`; without tag and digest the chart's tag holds."""
    if image is None:
        return
    name, _, digest = image.partition("@")
    folder, slash, last = name.rpartition("/")
    last, _, tag = last.partition(":")
    if not last or (digest and not digest.startswith("sha256:")) or any(c.isspace() for c in image):
        raise ConfigError(
            f"--image {image}: must be an image, such as registry.example/diptych:1.2"
        )
    yield f"image.repository={folder}{slash}{last}"
    yield f"image.tag={tag}"
    yield f"image.digest={digest}"


def _checked_setting(text: str) -> str:
    if not text.partition("=")[0] or "=" not in text:
        raise ConfigError(f"--set {text}: must be name=value, such as ha.enabled=true")
    return text


def _existing_file(path: Path) -> Path:
    if not path.is_file():
        raise ConfigError(f"--values {path}: there is no such file")
    return path
