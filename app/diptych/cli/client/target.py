"""What a person typed to say which agent is meant: a file, a URL, or an Agent of a cluster."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from diptych.cli.client.agent_client import AgentClient
from diptych.cli.cluster.flags import ClusterFlags
from diptych.cli.environment import local_options
from diptych.core.errors import ConfigError

if TYPE_CHECKING:
    from diptych.cli.client.remote import RemoteAgent
    from diptych.cli.cluster.agents import AgentName

_FILE_OPTIONS = "--agent, --secrets and --service"
_CLUSTER_OPTIONS = "--kubeconfig, --context, --namespace and --as-service-account"


@dataclass(frozen=True, slots=True)
class Target:
    """A file, URL or Agent as it was typed, with the options of a file or of a cluster."""

    address: str
    agent: str | None = None
    secrets: Path | None = None
    services: Sequence[str] | None = None
    cluster: ClusterFlags = field(default_factory=ClusterFlags)

    @property
    def is_file(self) -> bool:
        """Whether its agents live as long as the command does."""
        return "://" not in self.address and _is_file(self.address)

    def connect(self) -> AbstractAsyncContextManager[AgentClient]:
        """Give a client of the agent while a block lasts; a file is served meanwhile.

        Raises `ConfigError`, and for a remote agent any other `DiptychError`.
        """
        if "://" in self.address:
            return self._at_url()
        if self.is_file:
            return self._of_file()
        from diptych.cli.cluster.agents import AgentName

        if (name := AgentName.parse(self.address)) is None:
            return self._of_file()
        return self._in_cluster(name, f"there is no file {self.address}, and in the cluster: ")

    def connect_remote(self) -> "AbstractAsyncContextManager[RemoteAgent]":
        """Give a client of an agent that runs already, at a URL or in a cluster.

        The URL may lack `http://`. Raises as `connect` does.
        """
        from diptych.cli.cluster.agents import AgentName

        name = AgentName.parse(self.address)
        if name is None or self.address == "localhost":
            return self._at_url()
        return self._in_cluster(name)

    def _at_url(self) -> "AbstractAsyncContextManager[RemoteAgent]":
        from diptych.cli.client.remote import agent_at

        self._refuse_file_options(f"not {self.address}")
        self._refuse_cluster_options()
        return agent_at(self.address)

    def _of_file(self) -> AbstractAsyncContextManager[AgentClient]:
        from diptych.cli.client.local import agent_of_file

        self._refuse_cluster_options()
        options = local_options(self.secrets, self.services)
        return agent_of_file(Path(self.address), self.agent, options)

    @asynccontextmanager
    async def _in_cluster(
        self, name: "AgentName", error_prefix: str = ""
    ) -> "AsyncIterator[RemoteAgent]":
        from diptych.cli.client.in_cluster import agent_in_cluster
        from diptych.cli.cluster.errors import ClusterError, NotReady

        self._refuse_file_options("and there is none of this name")
        async with AsyncExitStack() as stack:
            try:
                agent = await stack.enter_async_context(agent_in_cluster(name, self.cluster))
            except NotReady:
                raise  # the Agent exists, so no file was meant
            except ConfigError as error:
                raise ConfigError(*(error_prefix + line for line in error.problems)) from error
            except ClusterError as error:
                raise ClusterError(f"{error_prefix}{error}") from error
            yield agent

    def _refuse_file_options(self, why: str) -> None:
        if self.agent or self.secrets or self.services:
            raise ConfigError(f"{_FILE_OPTIONS} go with a file, {why}")

    def _refuse_cluster_options(self) -> None:
        if self.cluster.is_given:
            raise ConfigError(
                f"{_CLUSTER_OPTIONS} go with an Agent of a cluster, not {self.address}"
            )


def _is_file(address: str) -> bool:
    """Whether the path exists and can be read: a named pipe can, a folder cannot."""
    path = Path(address)
    return path.exists() and not path.is_dir()
