"""What a command takes from the environment: substitutes for a cluster, and process settings."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from diptych.core.errors import ConfigError

if TYPE_CHECKING:
    from diptych.manifest.loader import LocalOptions


def local_options(secrets: Path | None, services: Sequence[str] | None) -> "LocalOptions":
    """Give what replaces a cluster's Secrets and Services here.

    `services` are `NAME=URL`; any other form raises `ConfigError`.
    """
    from diptych.manifest.loader import LocalOptions

    return LocalOptions(dict(os.environ), secrets, _service_urls(services or ()))


def set_up_quiet_logging() -> None:
    """Log errors only, unless LOG_LEVEL asks for more: the output already shows the run."""
    from diptych.manifest.environment import process_settings
    from diptych.serve.logs import set_up_logging

    settings = process_settings(os.environ)
    level = settings.log_level if os.environ.get("LOG_LEVEL", "").strip() else "ERROR"
    set_up_logging(level, settings.log_format)


def _service_urls(services: Sequence[str]) -> Mapping[str, str]:
    pairs = [service.partition("=") for service in services]
    wrong = [f"--service {name}: must be NAME=URL" for name, _, url in pairs if not (name and url)]
    if wrong:
        raise ConfigError(*wrong)
    return {name: url for name, _, url in pairs}
