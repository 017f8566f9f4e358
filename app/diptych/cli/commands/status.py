"""`diptych status`: whether operator and CRD are there, and which objects are not ready."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from diptych.cli.cluster.kubectl import ClusterError, ClusterFlags, Forbidden, Kubectl, NotFound
from diptych.cli.exits import FAILED
from diptych.core.errors import ConfigError

if TYPE_CHECKING:
    from diptych.cli.cluster.agents import AgentObject
    from diptych.cli.cluster.operators import Operator

_OK, _FAILED, _NOTE = "OK", "FAILED", "NOTE"  # the names of marks
_MAX_NAMES = 5
_TIME = r"\b20\d\d-\d\d-\d\dT[0-9:.]+Z\b"
_CRD = "agents.diptych.dev"
_SHARED = {
    "modelapis.diptych.dev": "ModelAPIs",
    "mcpservers.diptych.dev": "MCPServers",
    "agentpools.diptych.dev": "AgentPools",
}

_Finding: TypeAlias = tuple[str, str, str]
"""A line of the report: its mark, its subject, and a text."""


def status(
    cluster: ClusterFlags,
    all_namespaces: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="The Agents of all namespaces.")
    ] = False,
) -> None:
    """Report on Diptych in a cluster: the operator, the CRD, and each object that is not ready.

    It reads all namespaces; with `--namespace`, the Agents of that one. The exit code is 0
    if all is well, else 1.
    """
    from diptych.cli.output.screen import Mark, print_report

    if cluster.namespace and all_namespaces:
        raise ConfigError("give either --namespace or --all-namespaces")
    if cluster.service_account:
        raise ConfigError("--as-service-account is for asking an Agent; status asks the cluster")
    kubectl = Kubectl(cluster)
    operators, is_served = _operators(kubectl)
    crd = _crd(kubectl)
    findings = [*operators, crd]
    if crd[0] is not _FAILED:
        as_of = "" if is_served else _as_of(kubectl)
        everywhere = cluster.namespace is None
        findings += _agents(kubectl, as_of, all_namespaces=everywhere)
        for kind, what in _SHARED.items():
            findings += _shared(kubectl, kind, what, as_of, all_namespaces=everywhere)
    print_report((Mark[mark].value, (f"{what}  ", "bold"), text) for mark, what, text in findings)
    if any(mark is _FAILED for mark, _, _ in findings):
        raise typer.Exit(FAILED)


def _operators(kubectl: Kubectl) -> tuple[list[_Finding], bool]:
    """Report on the operators; the second value is whether one may be at work."""
    from diptych.cli.cluster.operators import list_operators, read_claims

    try:
        operators = list_operators(kubectl)
    except Forbidden as error:
        return [(_NOTE, "operator", f"you may not see it: {error}")], True
    if not operators:
        text = "none is installed; charts/diptych/README.md says how"
        return [(_FAILED, "operator", text)], False
    findings = [_operator(kubectl, operator) for operator in operators]
    is_served = any(mark is not _FAILED for mark, _, _ in findings)
    if len(operators) == 1:
        return findings, is_served
    try:
        served, _ = read_claims(kubectl)
    except Forbidden as error:
        return [*findings, (_NOTE, "claims", f"you may not see them: {error}")], is_served
    for operator in operators:
        namespaces = ", ".join(sorted(served.get(operator.full_name, ())))
        text = f"serves {namespaces}" if namespaces else "stands back, or has no Agents"
        findings.append((_NOTE, f"  {operator.full_name}", text))
    return findings, is_served


def _operator(kubectl: Kubectl, operator: "Operator") -> _Finding:
    from diptych.cli.cluster.operators import start_failure

    has_leader, leader = _leader(kubectl, operator)
    text = (
        f"{operator.full_name} {operator.version}, image {operator.image}, "
        f"{operator.available} of {operator.wanted} ready, {leader}"
    )
    if operator.available > 0 and has_leader:
        return _OK, "operator", text
    try:
        failure = start_failure(kubectl, operator)
    except ClusterError:
        failure = ""
    hint = f"see `kubectl describe pods -n {operator.namespace}`, or its logs"
    return _FAILED, "operator", f"{text}; {failure or hint}"


def _leader(kubectl: Kubectl, operator: "Operator") -> tuple[bool, str]:
    """Return whether one of the operator's pods leads, and a text that says which."""
    from diptych.cli.cluster.operators import lease_holder

    try:
        holder = lease_holder(kubectl, operator)
    except Forbidden:
        return True, "you may not see its leader"
    if holder is None:
        return False, "no operator is the leader"
    if holder.is_current:
        return True, f"{holder.name} leads"
    return (
        False,
        f"no operator is the leader; {holder.name} last renewed its Lease at {holder.renewed}",
    )


def _as_of(kubectl: Kubectl) -> str:
    """Return how old the Agents' statuses are, where no operator is at work."""
    from diptych.cli.cluster.operators import read_claims

    try:
        _, last = read_claims(kubectl)
    except Forbidden:
        last = ""
    return f" as of {last or 'an unknown time'}; no operator is at work"


def _crd(kubectl: Kubectl) -> _Finding:
    try:
        crd = kubectl.json("get", "customresourcedefinitions", _CRD)
    except Forbidden as error:
        return _NOTE, "CRD", f"you may not see it: {error}"
    except NotFound:
        return _FAILED, "CRD", f"{_CRD} is not installed; the chart installs it"
    conditions = (crd.get("status") or {}).get("conditions", ())
    if not any(c["type"] == "Established" and c["status"] == "True" for c in conditions):
        return _FAILED, "CRD", f"{_CRD} is there, and the API does not serve it (yet)"
    chart = (crd["metadata"].get("labels") or {}).get("helm.sh/chart")
    of_chart = f", of chart {chart}" if chart else ""
    versions = ", ".join(v["name"] for v in crd["spec"]["versions"] if v["served"])
    return _OK, "CRD", f"{_CRD} {versions}{of_chart}"


def _agents(kubectl: Kubectl, as_of: str, *, all_namespaces: bool) -> Iterator[_Finding]:
    from diptych.cli.cluster.agents import list_agents

    try:
        agents = list_agents(kubectl, all_namespaces=all_namespaces)
    except Forbidden as error:
        hint = "; give the --namespace that you may see" if all_namespaces else ""
        yield _FAILED, "agents", f"you may not see them: {error}{hint}"
        return
    ready = [agent for agent in agents if agent.is_ready]
    broken = [agent for agent in agents if not agent.is_ready]
    mark = _FAILED if broken else _NOTE if as_of else _OK
    text = f"{len(ready)} of {len(agents)} ready{as_of}" if agents else "there are none"
    yield mark, "agents", text
    yield from _by_cause(_FAILED, [(agent, agent.problem) for agent in broken])
    yield from _by_cause(_NOTE, [(agent, text) for agent in ready for text in _notable(agent)])
    waiting = [a for a in agents if a.condition("Reconciling").reason == "WaitsForOthers"]
    if waiting:
        text = f"{len(waiting)} of {len(agents)} wait for the rollout of others"
        yield _NOTE, "rollout", f"{text} ({_names(waiting)})"
    yield from _schedules(agents)


def _shared(
    kubectl: Kubectl, kind: str, what: str, as_of: str, *, all_namespaces: bool
) -> Iterator[_Finding]:
    """Report on a kind that Agents share; nothing, if there are no such objects to be seen."""
    from diptych.cli.cluster.agents import list_agents

    try:
        found = list_agents(kubectl, all_namespaces=all_namespaces, kind=kind)
    except (Forbidden, NotFound):
        return
    broken = [one for one in found if not one.is_ready]
    if found:
        mark = _FAILED if broken else _NOTE if as_of else _OK
        yield mark, what, f"{len(found) - len(broken)} of {len(found)} ready{as_of}"
    yield from _by_cause(_FAILED, [(one, one.problem) for one in broken], what)


def _schedules(agents: Sequence["AgentObject"]) -> Iterator[_Finding]:
    """Tell the next time; what failed is in the Agents' conditions."""
    found = [(f"{a.full_name} {each['name']}", each) for a in agents for each in a.schedules]
    following = [(schedule["next"], name) for name, schedule in found if "next" in schedule]
    if following:
        time, name = min(following)
        yield _OK, "schedules", f"{len(found)}; next is {name} at {time}"


def _notable(agent: "AgentObject") -> Iterator[str]:
    notable = [kind for kind, is_notable in _NOTABLE.items() if is_notable(agent)]
    for kind in notable:  # the operator gives advice about the gravest, which is first
        is_advised = kind == notable[0] and kind != "AccessOpen"
        yield agent.advised(kind) if is_advised else agent.condition(kind).text


def _by_cause(
    mark: str, found: Sequence[tuple["AgentObject", str]], what: str = "agents"
) -> Iterator[_Finding]:
    """Report objects; those whose texts differ only in names and times share a line."""
    groups: dict[str, list[tuple[AgentObject, str]]] = {}
    for agent, text in found:
        own = rf"\b{re.escape(agent.name)}\b(-[a-z0-9]+-[a-z0-9]{{5}}\b)?"
        groups.setdefault(re.sub(f"{own}|{_TIME}", "…", text), []).append((agent, text))
    for members in groups.values():
        agents, texts = zip(*members, strict=True)
        if len(agents) == 1:
            yield mark, f"  {agents[0].full_name}", texts[0]
        else:
            yield mark, f"  {len(agents)} {what}", f"{texts[0]} ({_names(agents)})"


def _names(agents: Sequence["AgentObject"]) -> str:
    names = [agent.full_name for agent in agents]
    return ", ".join(names[:_MAX_NAMES]) + (", …" if len(names) > _MAX_NAMES else "")


def _is(kind: str, value: str) -> Callable[["AgentObject"], bool]:
    return lambda agent: agent.condition(kind).status == value


def _is_degraded(agent: "AgentObject") -> bool:
    degraded, refs = agent.condition("Degraded"), agent.condition("ResolvedRefs")
    is_notable = degraded.status == "True" or degraded.reason == "NotAsked"
    return is_notable and degraded.message != refs.message


_NOTABLE: dict[str, Callable[["AgentObject"], bool]] = {
    "Accepted": _is("Accepted", "False"),
    "Stalled": lambda agent: _is("Stalled", "True")(agent) and not _is("Accepted", "False")(agent),
    "ResolvedRefs": _is("ResolvedRefs", "False"),
    "Degraded": _is_degraded,
    "AccessOpen": _is("AccessOpen", "True"),
    "Drifted": _is("Drifted", "True"),
}
"""Conditions that are reported even of a ready Agent, and when; the gravest first, as in advice."""
