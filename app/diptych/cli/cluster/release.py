"""The operator's chart as a release of helm: which chart, what is there, what would become of it.

Not here: waiting until the operator is up, and what is said (`install`).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import orjson
import yaml

from diptych.cli.cluster.errors import ClusterError
from diptych.cli.cluster.flags import ClusterPlace
from diptych.cli.cluster.kubectl import output, program
from diptych.errors import ConfigError

RELEASE = "diptych"
_SECONDS = 300.0
_ABSENT = "release: not found"


@dataclass(frozen=True, slots=True)
class Installed:
    """A release that is there."""

    version: str
    status: str
    revision: int
    manifest: str


@dataclass(frozen=True, slots=True)
class Wishes:
    """The settings of an install, as they were typed; `keeps` takes over those given before."""

    image: str | None = None
    values: Sequence[Path] = ()
    settings: Sequence[str] = ()
    keeps: bool = True

    @property
    def words(self) -> list[str]:
        """Give them as helm's options. Raises `ConfigError`."""
        files = [f"--values={_readable(path)}" for path in self.values]
        image = [f"--set-string={setting}" for setting in _image_settings(self.image)]
        single = [f"--set={setting}" for setting in map(_setting, self.settings)]
        kept = "--reset-then-reuse-values" if self.keeps else "--reset-values"
        return [*files, *image, *single, kept]


class Release:
    """The operator's release in one namespace. Methods raise `ClusterError`, `ConfigError`."""

    def __init__(self, place: ClusterPlace, chart: Path) -> None:
        self.place = place
        self._chart = chart
        self.version: str = yaml.safe_load((chart / "Chart.yaml").read_text())["version"]

    def now(self) -> Installed | None:
        """Read what is there; None if there is nothing."""
        try:
            about = orjson.loads(self._helm("get", "metadata", RELEASE, "--output=json"))
        except ClusterError as error:
            if _ABSENT in str(error):
                return None
            raise
        manifest = self._helm("get", "manifest", RELEASE)
        return Installed(about["version"], about["status"], about["revision"], manifest)

    def planned(self, wishes: Wishes) -> str:
        """Give the objects that an install would make, as YAML; nothing is changed."""
        said = self._upgrade(wishes, "--dry-run=server")
        manifest: str = said["manifest"]
        return manifest

    def install(self, wishes: Wishes) -> int:
        """Install or upgrade; give the release's revision."""
        revision: int = self._upgrade(wishes, "--create-namespace")["version"]
        return revision

    def _upgrade(self, wishes: Wishes, *words: str) -> Mapping[str, Any]:
        said: Mapping[str, Any] = orjson.loads(
            self._helm(
                *("upgrade", RELEASE, str(self._chart), "--install", "--output=json"),
                *wishes.words,
                *words,
            )
        )
        return said

    def _helm(self, *words: str) -> str:
        place = self.place
        command = [program("helm"), *words, f"--namespace={place.namespace}"]
        command += [f"--kubeconfig={place.kubeconfig}"] if place.kubeconfig else []
        command += [f"--kube-context={place.context}"] if place.context else []
        return output(command, _SECONDS)


@contextmanager
def our_chart() -> Iterator[Path]:
    """Give the chart's folder for the time of a block. Raises `ConfigError` if it did not come.

    A wheel holds it; a checkout has it beside `app/`. The container image has neither.
    """
    packed = files("diptych") / "chart"
    beside = Path(__file__).parents[4] / "charts" / "diptych"
    if packed.joinpath("Chart.yaml").is_file():
        with as_file(packed) as folder:
            yield folder
    elif (beside / "Chart.yaml").is_file():
        yield beside
    else:
        raise ConfigError(
            "the chart is not part of this installation; use one made by `pip install diptych`"
        )


def is_newer(version: str, than: str) -> bool:
    """Whether a version comes after another one; unreadable ones never do."""
    try:
        return _numbers(version) > _numbers(than)
    except ValueError:
        return False


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.lstrip("v").partition("-")[0].split(".")]


def _image_settings(image: str | None) -> Iterator[str]:
    """Part `registry:5000/diptych:1.2@sha256:…`; without tag and digest, the chart's own tag."""
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


def _setting(text: str) -> str:
    if not text.partition("=")[0] or "=" not in text:
        raise ConfigError(f"--set {text}: must be name=value, such as ha.enabled=true")
    return text


def _readable(path: Path) -> Path:
    if not path.is_file():
        raise ConfigError(f"--values {path}: there is no such file")
    return path
