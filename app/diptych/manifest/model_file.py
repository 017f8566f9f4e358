"""The model of an Agent that the operator resolves: a file in the pod, which changes while it runs.

It holds a whole `spec.model`, in which `{"file": PATH}` stands for each key that is mounted; PATH
is relative to the folder of references, or absolute.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from diptych.core.errors import ConfigError
from diptych.manifest.fields import KeyRef, SecretSource

MODEL_FILE = "DIPTYCH_MODEL_FILE"
"""The environment variable with the file's path."""


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


def parsed_model(text: str, path: Path) -> Mapping[str, Any]:
    """Read the text of the model file at `path`. Raises `ConfigError`."""
    try:
        content = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{path}: is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: must be a JSON object, as spec.model is")
    return content
