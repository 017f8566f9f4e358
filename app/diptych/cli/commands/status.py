"""`diptych status`: whether operator and CRD are there, and which Agents are not ready."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from diptych.cli.commands.options import AllNamespaces, Context, Kubeconfig, Namespace
from diptych.cli.exit_codes import FAILED
from diptych.cli.output.marks import Mark
from diptych.errors import ConfigError

if TYPE_CHECKING:
    from diptych.cli.cluster.agents import AgentObject
    from diptych.cli.cluster.kubectl import Kubectl
    from diptych.cli.cluster.operators import Operator
    from diptych.cli.output.screen import Line


_MAX_NAMES = 5


@dataclass(frozen=True, slots=True)
class _Finding:
    """One line of the report."""

    mark: Mark
    subject: str
    text: str

    @property
    def line(self) -> "Line":
        return self.mark.value, (f"{self.subject}  ", "bold"), self.text


def status(
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
    all_namespaces: AllNamespaces = False,
) -> None:
    """Report on Diptych in a cluster: the operator, the CRD, and each Agent that is not ready.

    It reads all namespaces; with `--namespace`, the Agents of that one. The exit code is 0
    if all is well, else 1.
    """
    from diptych.cli.cluster.flags import ClusterFlags
    from diptych.cli.cluster.kubectl import Kubectl
    from diptych.cli.output.report import print_report

    if namespace and all_namespaces:
        raise ConfigError("give either --namespace or --all-namespaces")
    kubectl = Kubectl(ClusterFlags(kubeconfig, context, namespace))
    crd = _crd(kubectl)
    findings = [*_operators(kubectl), crd]
    if crd.mark is not Mark.FAILED:
        findings += _agents(kubectl, all_namespaces=namespace is None)
    print_report(finding.line for finding in findings)
    if any(finding.mark is Mark.FAILED for finding in findings):
        raise typer.Exit(FAILED)


def _operators(kubectl: "Kubectl") -> list[_Finding]:
    from diptych.cli.cluster.errors import Forbidden
    from diptych.cli.cluster.operators import list_operators

    try:
        operators = list_operators(kubectl)
    except Forbidden as error:
        return [_Finding(Mark.NOTE, "operator", f"not to be seen: {error}")]
    if not operators:
        text = "none is installed; `diptych install` installs it"
        return [_Finding(Mark.FAILED, "operator", text)]
    findings = [_operator(kubectl, operator) for operator in operators]
    return findings if len(operators) == 1 else [*findings, *_claims(kubectl, operators)]


def _claims(kubectl: "Kubectl", operators: Sequence["Operator"]) -> Iterator[_Finding]:
    """Say which of several operators serves which namespaces, and which one stands back."""
    from diptych.cli.cluster.errors import Forbidden
    from diptych.cli.cluster.operators import served_namespaces

    try:
        served = served_namespaces(kubectl)
    except Forbidden as error:
        yield _Finding(Mark.NOTE, "claims", f"not to be seen: {error}")
        return
    for name in (f"{operator.namespace}/{operator.name}" for operator in operators):
        namespaces = sorted(served.get(name, ()))
        text = f"serves {', '.join(namespaces)}" if namespaces else "stands back, or has no Agents"
        yield _Finding(Mark.NOTE, f"  {name}", text)


def _operator(kubectl: "Kubectl", operator: "Operator") -> _Finding:
    has_leader, leader = _leader(kubectl, operator)
    text = (
        f"{operator.namespace}/{operator.name} {operator.version}, image {operator.image}, "
        f"{operator.available} of {operator.wanted} ready, {leader}"
    )
    is_ok = operator.is_available and has_leader
    if not is_ok:
        text += f"; see `kubectl describe pods -n {operator.namespace}`, or its logs"
    return _Finding(Mark.of(is_ok), "operator", text)


def _leader(kubectl: "Kubectl", operator: "Operator") -> tuple[bool, str]:
    """Give whether one of the operator's pods leads, and a text that tells which."""
    from diptych.cli.cluster.errors import Forbidden
    from diptych.cli.cluster.operators import lease_holder

    try:
        holder = lease_holder(kubectl, operator)
    except Forbidden:
        return True, "its leader is not to be seen"
    if holder is None:
        return False, "nobody leads"
    if holder.is_current:
        return True, f"{holder.name} leads"
    renewed = f"{holder.renewed:%Y-%m-%d %H:%M:%S %Z}" if holder.renewed else "never"
    return False, f"nobody leads: {holder.name} was last heard of {renewed}"


def _crd(kubectl: "Kubectl") -> _Finding:
    from diptych.cli.cluster.errors import Forbidden
    from diptych.cli.cluster.operators import CRD, agent_crd, is_established, served_versions

    try:
        crd = agent_crd(kubectl)
    except Forbidden as error:
        return _Finding(Mark.NOTE, "CRD", f"not to be seen: {error}")
    if crd is None:
        return _Finding(
            Mark.FAILED, "CRD", f"{CRD} is not installed; `diptych install` installs it"
        )
    if not is_established(crd):
        return _Finding(Mark.FAILED, "CRD", f"{CRD} is there, and the API does not serve it (yet)")
    chart = (crd["metadata"].get("labels") or {}).get("helm.sh/chart")
    of_chart = f", of chart {chart}" if chart else ""
    return _Finding(Mark.OK, "CRD", f"{CRD} {', '.join(served_versions(crd))}{of_chart}")


def _agents(kubectl: "Kubectl", *, all_namespaces: bool) -> list[_Finding]:
    from diptych.cli.cluster.agents import list_agents
    from diptych.cli.cluster.errors import Forbidden

    try:
        return list(_agent_findings(list_agents(kubectl, all_namespaces=all_namespaces)))
    except Forbidden as error:
        hint = "; give the --namespace that you may see" if all_namespaces else ""
        return [_Finding(Mark.FAILED, "agents", f"not to be seen: {error}{hint}")]


def _agent_findings(agents: Sequence["AgentObject"]) -> Iterator[_Finding]:
    ready = [agent for agent in agents if agent.is_ready]
    text = f"{len(ready)} of {len(agents)} ready" if agents else "there are none"
    yield _Finding(Mark.of(len(ready) == len(agents)), "agents", text)
    for agent in agents:
        if not agent.is_ready:
            yield _agent_finding(Mark.FAILED, agent, agent.problem)
    for agent in ready:
        notable = [kind for kind, is_notable in _NOTABLE.items() if is_notable(agent)]
        for kind in notable:  # of the gravest, which is first, the operator gives advice
            is_advised = kind == notable[0] and kind != "AccessOpen"
            text = agent.advised(kind) if is_advised else agent.condition(kind).text
            yield _agent_finding(Mark.NOTE, agent, text)
    yield from _rollout_findings(agents)
    yield from _access_findings(agents)


def _rollout_findings(agents: Sequence["AgentObject"]) -> Iterator[_Finding]:
    """Say which Agents have not begun to take over what the platform changed: they stay ready."""
    waiting = [a for a in agents if a.condition("Reconciling").reason == "WaitsForOthers"]
    if waiting:
        text = (
            f"{len(waiting)} of {len(agents)} wait for the rollout of others "
            f"({_some_names(waiting)})"
        )
        yield _Finding(Mark.NOTE, "rollout", text)


def _access_findings(agents: Sequence["AgentObject"]) -> Iterator[_Finding]:
    """Say which Agents are closed to strangers and do not say so: earlier versions were open."""
    silent = [agent for agent in agents if "access" not in agent.spec]
    if silent:
        text = (
            f"{len(silent)} of {len(agents)} without spec.access: Agents that delegate to them, "
            "and ServiceAccounts of their namespaces, may ask, and nobody else; "
            "spec.access.grants lets others in, `diptych token` gives a token "
            f"({_some_names(silent)})"
        )
        yield _Finding(Mark.NOTE, "access", text)


def _some_names(agents: Sequence["AgentObject"]) -> str:
    names = [f"{agent.namespace}/{agent.name}" for agent in agents]
    return ", ".join(names[:_MAX_NAMES]) + (", …" if len(names) > _MAX_NAMES else "")


def _agent_finding(mark: Mark, agent: "AgentObject", text: str) -> _Finding:
    return _Finding(mark, f"  {agent.namespace}/{agent.name}", text)


_NOTABLE: dict[str, Callable[["AgentObject"], bool]] = {
    "Accepted": lambda agent: agent.condition("Accepted").status == "False",
    "Stalled": lambda agent: (
        agent.condition("Stalled").status == "True"
        and agent.condition("Accepted").status != "False"  # which has said it
    ),
    "ResolvedRefs": lambda agent: agent.condition("ResolvedRefs").status == "False",
    "Degraded": lambda agent: agent.condition("Degraded").status == "True",
    "AccessOpen": lambda agent: agent.condition("AccessOpen").status == "True",
    "Drifted": lambda agent: agent.condition("Drifted").status == "True",
}
"""Conditions that are reported even of a ready Agent, and when; the gravest first, as in advice."""
