"""`diptych status`: is an operator at work, does the cluster know Agents, and which are not ready.

Not here: all about one Agent (`get`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from diptych.cli.commands.options import AllNamespaces, Context, Kubeconfig, Namespace
from diptych.errors import ConfigError

if TYPE_CHECKING:
    from diptych.cli.cluster.agents import AgentObject
    from diptych.cli.cluster.kubectl import Kubectl
    from diptych.cli.cluster.operators import Operator
    from diptych.cli.output.screen import Part

_ILL = 1  # the exit code


@dataclass(frozen=True, slots=True)
class _Finding:
    """One line of the report; None means that it should be known, and is no fault."""

    is_well: bool | None
    what: str
    said: str

    @property
    def line(self) -> tuple["Part", ...]:
        from diptych.cli.output.report import MARKS

        return MARKS[self.is_well], (f"{self.what}  ", "bold"), self.said


def status(
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
    everywhere: AllNamespaces = False,
) -> None:
    """Say how Diptych is in a cluster: the operator, the CRD, and each Agent that is not ready.

    It looks into all namespaces; with `--namespace`, at the Agents of that one. The exit code is 0
    if all is well, else 1.
    """
    from diptych.cli.cluster.flags import ClusterPlace
    from diptych.cli.cluster.kubectl import Kubectl
    from diptych.cli.output.report import print_sheet

    if namespace and everywhere:
        raise ConfigError("give either --namespace or --all-namespaces")
    kubectl = Kubectl(ClusterPlace(kubeconfig, context, namespace))
    definition = _crd(kubectl)
    findings = [*_operators(kubectl), definition]
    if definition.is_well is not False:
        findings += _agents(kubectl, everywhere=namespace is None)
    print_sheet(finding.line for finding in findings)
    if any(finding.is_well is False for finding in findings):
        raise typer.Exit(_ILL)


def _operators(kubectl: "Kubectl") -> list[_Finding]:
    from diptych.cli.cluster.errors import Forbidden
    from diptych.cli.cluster.operators import operators

    try:
        found = operators(kubectl)
    except Forbidden as error:
        return [_Finding(None, "operator", f"not to be seen: {error}")]
    if not found:
        return [_Finding(False, "operator", "none is installed; `diptych install` installs it")]
    return [_operator(kubectl, operator) for operator in found]


def _operator(kubectl: "Kubectl", operator: "Operator") -> _Finding:
    is_led, leads = _leader(kubectl, operator)
    said = (
        f"{operator.namespace}/{operator.name} {operator.version}, image {operator.image}, "
        f"{operator.available} of {operator.wanted} ready, {leads}"
    )
    is_well = operator.is_well and is_led
    if not is_well:
        said += f"; see `kubectl describe pods -n {operator.namespace}`, or its logs"
    return _Finding(is_well, "operator", said)


def _leader(kubectl: "Kubectl", operator: "Operator") -> tuple[bool, str]:
    from diptych.cli.cluster.errors import Forbidden
    from diptych.cli.cluster.operators import leader

    try:
        found = leader(kubectl, operator)
    except Forbidden:
        return True, "its leader is not to be seen"
    if found is None:
        return False, "nobody leads"
    if found.is_current:
        return True, f"{found.name} leads"
    heard = f"{found.renewed:%Y-%m-%d %H:%M:%S %Z}" if found.renewed else "never"
    return False, f"nobody leads: {found.name} was last heard of {heard}"


def _crd(kubectl: "Kubectl") -> _Finding:
    from diptych.cli.cluster.errors import Forbidden
    from diptych.cli.cluster.operators import CRD, crd, is_established, served_versions

    try:
        definition = crd(kubectl)
    except Forbidden as error:
        return _Finding(None, "CRD", f"not to be seen: {error}")
    if definition is None:
        return _Finding(False, "CRD", f"{CRD} is not installed; `diptych install` installs it")
    if not is_established(definition):
        return _Finding(False, "CRD", f"{CRD} is there, and the API does not serve it (yet)")
    chart = (definition["metadata"].get("labels") or {}).get("helm.sh/chart")
    of = f", of chart {chart}" if chart else ""
    return _Finding(True, "CRD", f"{CRD} {', '.join(served_versions(definition))}{of}")


def _agents(kubectl: "Kubectl", *, everywhere: bool) -> list[_Finding]:
    from diptych.cli.cluster.agents import list_agents
    from diptych.cli.cluster.errors import Forbidden

    try:
        return _judged(list_agents(kubectl, everywhere=everywhere))
    except Forbidden as error:
        hint = "; give the --namespace that you may see" if everywhere else ""
        return [_Finding(False, "agents", f"not to be seen: {error}{hint}")]


def _judged(agents: Sequence["AgentObject"]) -> list[_Finding]:
    ready = [agent for agent in agents if agent.is_ready]
    said = f"{len(ready)} of {len(agents)} ready" if agents else "there are none"
    findings = [_Finding(len(ready) == len(agents), "agents", said)]
    findings += [_of_agent(False, agent, agent.trouble) for agent in agents if not agent.is_ready]
    for agent in ready:
        findings += [
            _of_agent(None, agent, agent.condition(kind).words)
            for kind, is_odd in _ODDITIES.items()
            if is_odd(agent)
        ]
    return findings


def _of_agent(is_well: bool | None, agent: "AgentObject", said: str) -> _Finding:
    return _Finding(is_well, f"  {agent.namespace}/{agent.name}", said)


_ODDITIES: dict[str, Callable[["AgentObject"], bool]] = {
    "Accepted": lambda agent: agent.condition("Accepted").status == "False",
    "ResolvedRefs": lambda agent: agent.condition("ResolvedRefs").status == "False",
    "Degraded": lambda agent: agent.condition("Degraded").status == "True",
}
"""Conditions worth a line although the agent is ready, and when."""
