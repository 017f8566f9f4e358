"""`diptych status`: whether operator and CRD are there, and which Agents are not ready."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from diptych.cli.commands.options import AllNamespaces, Context, Kubeconfig, Namespace
from diptych.cli.exit_codes import FAILED
from diptych.cli.output.marks import Mark
from diptych.core.errors import ConfigError

if TYPE_CHECKING:
    from diptych.cli.cluster.agents import AgentObject
    from diptych.cli.cluster.kubectl import Kubectl
    from diptych.cli.cluster.operators import Operator
    from diptych.cli.output.screen import Line


_MAX_NAMES = 5
_TIME = r"\b20\d\d-\d\d-\d\dT[0-9:.]+Z\b"


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
    operators = _operators(kubectl)
    findings = [*operators, crd]
    if crd.mark is not Mark.FAILED:
        marks = [
            finding.mark for finding in operators if finding.subject == "operator"
        ]  # no claims
        is_served = any(mark is not Mark.FAILED for mark in marks)
        as_of = "" if is_served else _as_of(kubectl)
        findings += _agents(kubectl, as_of, all_namespaces=namespace is None)
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
        text = "none is installed; charts/diptych/README.md says how"
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
        text += f"; {_failure(kubectl, operator)}"
    return _Finding(Mark.of(is_ok), "operator", text)


def _failure(kubectl: "Kubectl", operator: "Operator") -> str:
    """Say why its newest pod does not run, or where to look."""
    from diptych.cli.cluster.errors import ClusterError
    from diptych.cli.cluster.operators import start_failure

    try:
        failure = start_failure(kubectl, operator)
    except ClusterError:
        failure = ""
    return failure or f"see `kubectl describe pods -n {operator.namespace}`, or its logs"


def _as_of(kubectl: "Kubectl") -> str:
    """Say of which time the Agents' statuses are, where no operator is at work."""
    from diptych.cli.cluster.errors import Forbidden
    from diptych.cli.cluster.operators import last_served

    try:
        last = last_served(kubectl)
    except Forbidden:
        last = ""
    return f" as of {last or 'an unknown time'}; no operator is at work"


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
        return _Finding(Mark.FAILED, "CRD", f"{CRD} is not installed; the chart installs it")
    if not is_established(crd):
        return _Finding(Mark.FAILED, "CRD", f"{CRD} is there, and the API does not serve it (yet)")
    chart = (crd["metadata"].get("labels") or {}).get("helm.sh/chart")
    of_chart = f", of chart {chart}" if chart else ""
    return _Finding(Mark.OK, "CRD", f"{CRD} {', '.join(served_versions(crd))}{of_chart}")


def _agents(kubectl: "Kubectl", as_of: str, *, all_namespaces: bool) -> list[_Finding]:
    from diptych.cli.cluster.agents import list_agents
    from diptych.cli.cluster.errors import Forbidden

    try:
        agents = list_agents(kubectl, all_namespaces=all_namespaces)
    except Forbidden as error:
        hint = "; give the --namespace that you may see" if all_namespaces else ""
        return [_Finding(Mark.FAILED, "agents", f"not to be seen: {error}{hint}")]
    return list(_agent_findings(agents, as_of))


def _agent_findings(agents: Sequence["AgentObject"], as_of: str) -> Iterator[_Finding]:
    ready = [agent for agent in agents if agent.is_ready]
    text = f"{len(ready)} of {len(agents)} ready{as_of}" if agents else "there are none"
    are_ready = Mark.of(len(ready) == len(agents))
    yield _Finding(Mark.NOTE if as_of and are_ready is Mark.OK else are_ready, "agents", text)
    broken = [agent for agent in agents if not agent.is_ready]
    yield from _by_cause(Mark.FAILED, [(agent, agent.problem) for agent in broken])
    yield from _by_cause(Mark.NOTE, [(a, text) for a in ready for text in _notable(a)])
    yield from _rollout_findings(agents)


def _notable(agent: "AgentObject") -> Iterator[str]:
    notable = [kind for kind, is_notable in _NOTABLE.items() if is_notable(agent)]
    for kind in notable:  # of the gravest, which is first, the operator gives advice
        is_advised = kind == notable[0] and kind != "AccessOpen"
        yield agent.advised(kind) if is_advised else agent.condition(kind).text


def _by_cause(mark: Mark, found: Sequence[tuple["AgentObject", str]]) -> Iterator[_Finding]:
    """Report Agents, in one line those of which the same is said but for names and times."""
    groups: dict[str, list[tuple[AgentObject, str]]] = {}
    for agent, text in found:
        own = rf"\b{re.escape(agent.name)}\b(-[a-z0-9]+-[a-z0-9]{{5}}\b)?"
        groups.setdefault(re.sub(f"{own}|{_TIME}", "…", text), []).append((agent, text))
    for members in groups.values():
        agents, texts = zip(*members, strict=True)
        if len(agents) == 1:
            yield _Finding(mark, f"  {agents[0].namespace}/{agents[0].name}", texts[0])
        else:
            names = _some_names(agents)
            yield _Finding(mark, f"  {len(agents)} agents", f"{texts[0]} ({names})")


def _rollout_findings(agents: Sequence["AgentObject"]) -> Iterator[_Finding]:
    """Say which Agents have not begun to take over what the platform changed: they stay ready."""
    waiting = [a for a in agents if a.condition("Reconciling").reason == "WaitsForOthers"]
    if waiting:
        text = (
            f"{len(waiting)} of {len(agents)} wait for the rollout of others "
            f"({_some_names(waiting)})"
        )
        yield _Finding(Mark.NOTE, "rollout", text)


def _some_names(agents: Sequence["AgentObject"]) -> str:
    names = [f"{agent.namespace}/{agent.name}" for agent in agents]
    return ", ".join(names[:_MAX_NAMES]) + (", …" if len(names) > _MAX_NAMES else "")


def _is_unasked(agent: "AgentObject") -> bool:
    return agent.condition("Degraded").reason == "NotAsked"


_NOTABLE: dict[str, Callable[["AgentObject"], bool]] = {
    "Accepted": lambda agent: agent.condition("Accepted").status == "False",
    "Stalled": lambda agent: (
        agent.condition("Stalled").status == "True"
        and agent.condition("Accepted").status != "False"  # which has said it
    ),
    "ResolvedRefs": lambda agent: agent.condition("ResolvedRefs").status == "False",
    "Degraded": lambda agent: (
        (agent.condition("Degraded").status == "True" or _is_unasked(agent))
        and agent.condition("Degraded").message != agent.condition("ResolvedRefs").message
    ),
    "AccessOpen": lambda agent: agent.condition("AccessOpen").status == "True",
    "Drifted": lambda agent: agent.condition("Drifted").status == "True",
}
"""Conditions that are reported even of a ready Agent, and when; the gravest first, as in advice."""
