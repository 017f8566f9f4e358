"""What `run` and `chat` talk to: the agents of a file, or one that runs at a URL.

Not here: either of them (`local`, `remote`).
"""

import os
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

from diptych.cli.asking import Askable
from diptych.cli.options import laptop_options, process_environment
from diptych.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Target:
    """A file or URL as it was typed, and the options that belong to a file."""

    place: str
    agent: str | None = None
    secrets: Path | None = None
    services: Sequence[str] | None = None

    @property
    def is_url(self) -> bool:
        return "://" in self.place

    def reached(self) -> AbstractAsyncContextManager[Askable]:
        """Give the agent, ready to be asked, for the time of a block. Raises `ConfigError`."""
        if not self.is_url:
            from diptych.cli.local import agent_of

            options = laptop_options(self.secrets, self.services)
            return agent_of(Path(self.place), self.agent, options)
        from diptych.cli.remote import agent_at

        if self.agent or self.secrets or self.services:
            raise ConfigError(f"--agent, --secrets and --service go with a file, not {self.place}")
        return agent_at(self.place)


def set_up_quiet_logging() -> None:
    """Log errors alone, unless LOG_LEVEL asks for more: the view tells what happens."""
    from diptych.configuration import process_settings
    from diptych.logs import set_up_logging

    settings = process_settings(process_environment())
    level = settings.log_level if os.environ.get("LOG_LEVEL", "").strip() else "ERROR"
    set_up_logging(level, settings.log_format)
