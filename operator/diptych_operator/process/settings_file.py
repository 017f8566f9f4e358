"""Files that settings name: YAML that holds a mapping."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml


class SettingsError(ValueError):
    """A flag or variable with an invalid value; `str()` is one line."""


def read_mapping(flag: str, file: str) -> Mapping[str, Any]:
    """Read a file's mapping as JSON values; empty without a file. Raises `SettingsError`."""
    if not file:
        return {}
    try:
        content = yaml.safe_load(Path(file).read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not YAML"
        raise SettingsError(f"{flag}: {file} cannot be read: {reason}") from error
    if not isinstance(content, dict):
        raise SettingsError(f"{flag}: {file} must hold a mapping")
    return json.loads(json.dumps(content))  # type: ignore[no-any-return]
