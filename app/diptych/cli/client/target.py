"""Finds the agent that a person means: by a file, a URL, or the name of an Agent of a cluster."""

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from diptych.cli.cluster.kubectl import AgentName, ClusterError, ClusterFlags
from diptych.core.errors import ConfigError

if TYPE_CHECKING:
    from diptych.cli.client.remote import RemoteAgent
    from diptych.manifest.loader import LocalOptions
    from diptych.manifest.settings import DataFolder

_CLUSTER_OPTIONS = "--kubeconfig, --context, --namespace and --as-service-account"


def is_file(address: str) -> bool:
    """Return whether the path exists and is no folder; it may be a named pipe."""
    path = Path(address)
    return "://" not in address and path.exists() and not path.is_dir()


def local_options(
    secrets: Path | None, services: Sequence[str] | None, data: "DataFolder | None" = None
) -> "LocalOptions":
    """Return what replaces a cluster's Secrets, Services and Redis; `services` are `NAME=URL`."""
    from diptych.manifest.loader import LocalOptions

    pairs = [service.partition("=") for service in services or ()]
    wrong = [f"--service {name}: must be NAME=URL" for name, _, url in pairs if not (name and url)]
    if wrong:
        raise ConfigError(*wrong)
    services_ = {name: url for name, _, url in pairs}
    return LocalOptions(dict(os.environ), secrets, services_, data=data)


def connect(
    address: str | None,
    cluster: ClusterFlags,
    agent: str | None = None,
    secrets: Path | None = None,
    services: Sequence[str] | None = None,
    data: "DataFolder | None" = None,
    model: str | None = None,
) -> "AbstractAsyncContextManager[RemoteAgent]":
    """Return a client of an agent, as a context; one of a file or a model is served meanwhile.

    Without an address it is an agent without tools, which asks `model`, or the provider whose key
    is set. `agent`, `secrets`, `services` and `data` go with a file. Raises `ConfigError`, and for
    an agent that runs elsewhere any other `DiptychError`.
    """
    if address is None:
        if data:
            raise ConfigError("--data goes with a file")
        return _of_model(model, agent, secrets, services)
    if model:
        raise ConfigError(f"--model goes without {address}: {address} says which model it asks")
    is_url = "://" in address
    name = None if is_url else AgentName.parse(address)
    if is_file(address) or not (is_url or name):
        from diptych.cli.client.local import agent_of_file

        _refuse_cluster_options(address, cluster)
        return agent_of_file(Path(address), agent, local_options(secrets, services, data))
    if agent or secrets or services or data:
        why = f"not {address}" if is_url else "and there is none of this name"
        raise ConfigError(f"--agent, --secrets, --service and --data go with a file, {why}")
    if name is None:
        return connect_remote(address, cluster)
    return _in_cluster(name, cluster, f"there is no file {address}, and in the cluster: ")


def _of_model(
    model: str | None, agent: str | None, secrets: Path | None, services: Sequence[str] | None
) -> "AbstractAsyncContextManager[RemoteAgent]":
    from diptych.cli.client.local import agent_of_model
    from diptych.manifest.environment import MOCK
    from diptych.manifest.providers import PROVIDERS, provider_model, provider_of

    if agent or services:
        raise ConfigError("--agent and --service go with a file")
    options = local_options(secrets, services)
    if model is not None:
        return agent_of_model(provider_model(model), options)
    provider = provider_of(options.environ)
    if provider is None and not options.environ.get(MOCK, "").strip():
        raise ConfigError(
            "no model to talk to: give --model PROVIDER:NAME, such as --model ollama:llama3.2, or "
            "set the key of a provider, such as OPENAI_API_KEY; or name a file (`diptych init` "
            "writes one)"
        )
    known = {"provider": provider, "name": PROVIDERS[provider].example_model} if provider else None
    return agent_of_model(known, options)


def connect_remote(
    address: str, cluster: ClusterFlags
) -> "AbstractAsyncContextManager[RemoteAgent]":
    """Return a client of an agent that runs already, at a URL or in a cluster, as a context.

    The URL may lack `http://`. Raises as `connect` does.
    """
    name = AgentName.parse(address)
    if name is None or address == "localhost":
        from diptych.cli.client.remote import agent_at

        _refuse_cluster_options(address, cluster)
        return agent_at(address)
    return _in_cluster(name, cluster)


@asynccontextmanager
async def _in_cluster(
    name: AgentName, cluster: ClusterFlags, error_prefix: str = ""
) -> "AsyncIterator[RemoteAgent]":
    from diptych.cli.cluster.port_forward import agent_in_cluster

    async with AsyncExitStack() as stack:
        try:
            agent = await stack.enter_async_context(agent_in_cluster(name, cluster))
        except ConfigError as error:
            raise ConfigError(*(error_prefix + line for line in error.problems)) from error
        except ClusterError as error:
            raise ClusterError(f"{error_prefix}{error}") from error
        yield agent


def _refuse_cluster_options(address: str, cluster: ClusterFlags) -> None:
    if cluster.is_given:
        raise ConfigError(f"{_CLUSTER_OPTIONS} go with an Agent of a cluster, not {address}")
