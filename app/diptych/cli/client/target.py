"""What a person talks to: the agents of a file, one that runs at a URL, or one of a cluster.

Not here: any of them (`local`, `remote`, `cluster`).
"""

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from diptych.cli.cluster.flags import ClusterPlace
from diptych.cli.commands.options import laptop_options, process_environment
from diptych.cli.follow import Askable
from diptych.errors import ConfigError

if TYPE_CHECKING:
    from diptych.cli.client.remote import RemoteAgent
    from diptych.cli.cluster.agents import Reference

_OF_FILES = "--agent, --secrets and --service"
_OF_CLUSTERS = "--kubeconfig, --context and --namespace"


@dataclass(frozen=True, slots=True)
class Target:
    """A file, URL or Agent as it was typed, and the options that belong to the first or last."""

    place: str
    agent: str | None = None
    secrets: Path | None = None
    services: Sequence[str] | None = None
    cluster: ClusterPlace = field(default_factory=ClusterPlace)

    def reached(self) -> AbstractAsyncContextManager[Askable]:
        """Give the agent, ready to be asked, for the time of a block.

        Raises `ConfigError`; what runs elsewhere also other errors of `DiptychError`.
        """
        if "://" in self.place:
            return self._at_url()
        if _is_file(self.place):
            return self._of_file()
        from diptych.cli.cluster.agents import Reference

        if (reference := Reference.of(self.place)) is None:
            return self._of_file()
        return self._in_cluster(reference, f"there is no file {self.place}, and in the cluster: ")

    def reached_elsewhere(self) -> "AbstractAsyncContextManager[RemoteAgent]":
        """Give an agent that runs already: at a URL, which may lack `http://`, or in a cluster.

        Raises as `reached`.
        """
        from diptych.cli.cluster.agents import Reference

        reference = Reference.of(self.place)
        if reference is None or self.place == "localhost":
            return self._at_url()
        return self._in_cluster(reference)

    def _at_url(self) -> "AbstractAsyncContextManager[RemoteAgent]":
        from diptych.cli.client.remote import agent_at

        self._refuse_options_of_files(f"not {self.place}")
        self._refuse_options_of_clusters()
        return agent_at(self.place)

    def _of_file(self) -> AbstractAsyncContextManager[Askable]:
        from diptych.cli.client.local import agent_of

        self._refuse_options_of_clusters()
        options = laptop_options(self.secrets, self.services)
        return agent_of(Path(self.place), self.agent, options)

    @asynccontextmanager
    async def _in_cluster(
        self, reference: "Reference", tried: str = ""
    ) -> "AsyncIterator[RemoteAgent]":
        from diptych.cli.client.in_cluster import agent_in_cluster
        from diptych.cli.cluster.errors import ClusterError, NotReady

        self._refuse_options_of_files("and there is none of this name")
        async with AsyncExitStack() as stack:
            try:
                agent = await stack.enter_async_context(agent_in_cluster(reference, self.cluster))
            except NotReady:
                raise  # so it was meant
            except ConfigError as error:
                raise ConfigError(*(tried + problem for problem in error.problems)) from error
            except ClusterError as error:
                raise ClusterError(f"{tried}{error}") from error
            yield agent

    def _refuse_options_of_files(self, why: str) -> None:
        if self.agent or self.secrets or self.services:
            raise ConfigError(f"{_OF_FILES} go with a file, {why}")

    def _refuse_options_of_clusters(self) -> None:
        if self.cluster.is_given:
            raise ConfigError(f"{_OF_CLUSTERS} go with an Agent of a cluster, not {self.place}")


def _is_file(place: str) -> bool:
    """Whether something is there that can be read: also a pipe, and no folder."""
    path = Path(place)
    return path.exists() and not path.is_dir()


def set_up_quiet_logging() -> None:
    """Log errors alone, unless LOG_LEVEL asks for more: the view tells what happens."""
    from diptych.config.loader import process_settings
    from diptych.serve.logs import set_up_logging

    settings = process_settings(process_environment())
    level = settings.log_level if os.environ.get("LOG_LEVEL", "").strip() else "ERROR"
    set_up_logging(level, settings.log_format)
