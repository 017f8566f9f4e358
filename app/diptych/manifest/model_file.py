"""The model of an Agent that the operator resolves: a file in the pod, which changes while it runs.

It holds a whole `spec.model`, in which `{"file": PATH}` stands for each key that is mounted; PATH
is relative to the folder of references, or absolute.
"""

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from diptych.core.errors import ConfigError
from diptych.manifest.documents import read_text
from diptych.manifest.fields import KeyRef, SecretSource
from diptych.manifest.secret_sources import value_from_file
from diptych.manifest.settings import AgentConfig

MODEL_FILE = "DIPTYCH_MODEL_FILE"
"""The environment variable with the file's path."""
_logger = logging.getLogger(__name__)


class MountedKey(KeyRef):
    """A key whose file the operator names."""

    file: str


def with_model(content: Mapping[str, Any], model: Mapping[str, Any]) -> dict[str, Any]:
    """Return a manifest's content with the content of a model file as its `spec.model`."""
    spec = content.get("spec")
    spec = spec if isinstance(spec, Mapping) else {}
    return {**content, "spec": {**spec, "model": with_key_files(model)}}


def with_key_files(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Return JSON in which a `SecretSource` stands for each `{"file": PATH}`."""
    match value:
        case {"file": str(path), **rest} if not rest:
            name, key = Path(path).parent.name or "file", Path(path).name
            mounted = MountedKey.model_construct(name=name, key=key, file=path)
            return SecretSource.model_construct(secret_key_ref=mounted)
        case dict():
            return {name: with_key_files(inner) for name, inner in value.items()}
        case list():
            return [with_key_files(inner) for inner in value]
        case _:
            return value


def mounted_file(ref: KeyRef, folder: Path | None = None) -> Path | None:
    """Return the file of a key that the operator names; None for a key of a manifest."""
    return (folder or Path()) / ref.file if isinstance(ref, MountedKey) else None


class ModelFile:
    """The model file of one agent; `content` is what it held at the start.

    `resolve` makes the agent's configuration of its content. A file that cannot be used later
    leaves the former one in force, and `problem` says why. Raises `ConfigError` at the start.
    """

    def __init__(self, path: Path, resolve: Callable[[Mapping[str, Any]], AgentConfig]) -> None:
        self._path = path
        self._read = value_from_file(path)
        self._resolve = resolve
        self._text = self._read()
        self.content = _parsed(self._text or read_text(path), path)
        self._newest: AgentConfig | None = None
        self.problem = ""

    def newest(self) -> AgentConfig | None:
        """Return the configuration with the newest model; None while that of the start holds."""
        text = self._read()
        if text is None or text == self._text:
            return self._newest
        self._text = text
        try:
            self._newest = self._resolve(_parsed(text, self._path))
            self.problem = ""
        except ConfigError as error:
            self.problem = f"model file: {'; '.join(error.problems)}; the former one is in force"
            _logger.error("%s", self.problem)
        return self._newest


def _parsed(text: str, path: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{path}: is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: must be a JSON object, as spec.model is")
    return content
