"""The platform's HTTP proxy, `agents.proxy` of the chart, and what NO_PROXY exempts of it. Pure."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from diptych_operator.desired.references import address
from diptych_operator.resources.agent import Agent

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """The proxy's URL, what else is asked directly, and the cluster's DNS domain."""

    url: str
    no_proxy: tuple[str, ...] = ()
    domain: str = "cluster.local"


def proxy_variables(agent: Agent, proxy: ProxySettings | None) -> dict[str, str]:
    """Return the variables that send an Agent's requests through the proxy; none without one."""
    if proxy is None:
        return {}
    direct = [*_LOOPBACK, ".svc", f".{proxy.domain}", *_inside(agent, proxy), *proxy.no_proxy]
    variables = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY"), proxy.url)
    return {**variables, "NO_PROXY": ",".join(dict.fromkeys(direct))}


def _inside(agent: Agent, proxy: ProxySettings) -> Iterator[str]:
    """Yield the names, without `.svc`, by which the pod asks for what is in the cluster.

    A host of two labels is taken for NAME.NAMESPACE if its URL says http: to look whether there is
    such a Service would roll the pods when it comes or goes.
    """
    names = [peer.name for peer in agent.peers]
    names += [ref.name for ref in agent.service_refs]
    yield from (f"{name}.{namespace}" for namespace, name in names)
    for url in (*agent.urls, *agent.variable_urls):
        with suppress(ValueError):  # the manifest is rejected for it: `controller.obstacles`
            found = address(url, agent.namespace, proxy.domain)
            if found.service_name and (found.is_certain or url.startswith("http://")):
                yield found.host
