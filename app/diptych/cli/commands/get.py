"""`diptych get`: the Agents of a cluster, or all that is to be known of one."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from diptych.cli.commands.options import AllNamespaces, Context, Kubeconfig, Namespace
from diptych.errors import ConfigError

if TYPE_CHECKING:
    from diptych.cli.cluster.agents import AgentObject
    from diptych.cli.cluster.kubectl import Kubectl
    from diptych.cli.output.screen import Part

Form: TypeAlias = Literal["json", "yaml", "wide", "name"]
_IS_GOOD: Mapping[str, str] = {"Progressing": "False", "Degraded": "False"}
"""The status of a condition that is good, where that is not True."""
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def get(
    agent: Annotated[
        str | None,
        typer.Argument(metavar="AGENT", help="One Agent: its name, or namespace/name."),
    ] = None,
    form: Annotated[
        Form | None, typer.Option("--output", "-o", help="As kubectl prints it.")
    ] = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
    everywhere: AllNamespaces = False,
) -> None:
    """List the Agents of a namespace, or tell all about one.

    Of one it says its conditions in words, its pods, its address, its model, and what it misses.

    Examples: `diptych get -A`, `diptych get team/helper`
    """
    from diptych.cli.cluster.agents import AGENTS, Reference, find_agent
    from diptych.cli.cluster.flags import ClusterPlace
    from diptych.cli.cluster.kubectl import Kubectl
    from diptych.cli.output.report import print_sheet

    kubectl = Kubectl(ClusterPlace(kubeconfig, context, namespace))
    printed = [f"--output={form}"] if form else []
    if agent is None:
        scope = ["--all-namespaces"] if everywhere else []
        text = kubectl.text("get", AGENTS, *scope, *printed)
        typer.echo(text or _none_there(kubectl, everywhere=everywhere), nl=not text, err=not text)
        return
    if everywhere:
        raise ConfigError(f"--all-namespaces goes without a name; or ask for namespace/{agent}")
    found = find_agent(kubectl, Reference.typed(agent))
    within = kubectl.within(found.namespace)
    if form:
        typer.echo(within.text("get", AGENTS, found.name, *printed), nl=False)
    else:
        print_sheet(_about(within, found))


def _none_there(kubectl: "Kubectl", *, everywhere: bool) -> str:
    where = "in any namespace" if everywhere else f"in namespace {kubectl.namespace()}"
    return f"there are no Agents {where}; make one with `kubectl apply -f agent.yaml`"


def _about(kubectl: "Kubectl", agent: "AgentObject") -> Iterator[tuple["Part", ...]]:
    from diptych.cli.cluster.agents import pods_of
    from diptych.cli.output.report import MARKS

    yield MARKS[agent.is_ready], (agent.name, "bold"), (f"  in namespace {agent.namespace}", "dim")
    if description := agent.spec.get("description"):
        yield (f"  {description}",)
    yield ("",)
    yield _field("model", _model(agent.spec))
    yield _field("address", agent.status.get("url") or "none yet")
    yield from _links("tools", agent.spec.get("tools", ()))
    yield from _links("agents", agent.spec.get("agents", ()))
    yield from _pod_lines(pods_of(kubectl, agent))
    yield from _condition_lines(agent)
    yield from _missing_lines(agent)


def _field(name: str, text: str) -> tuple["Part", ...]:
    return (f"  {name:<11}", "dim"), text


def _model(spec: Mapping[str, Any]) -> str:
    model = spec.get("model") or {}
    variables = (spec.get("container") or {}).get("env", ())
    if any(variable.get("name") == "DEBUG_MOCK_RESPONSES" for variable in variables):
        return "a script (DEBUG_MOCK_RESPONSES)"
    return f"{model.get('name')} at {model.get('endpoint')}" if model else "none"


def _links(name: str, items: Sequence[Mapping[str, Any]]) -> Iterator[tuple["Part", ...]]:
    names = [str(item.get("as") or item.get("name") or item.get("url")) for item in items]
    if names:
        yield _field(name, ", ".join(names))


def _pod_lines(pods: Sequence[Mapping[str, Any]]) -> Iterator[tuple["Part", ...]]:
    from diptych.cli.cluster.agents import is_pod_ready
    from diptych.cli.output.report import MARKS

    yield _field("pods", f"{sum(map(is_pod_ready, pods))} of {len(pods)} ready" if pods else "none")
    for pod in pods:
        status = pod.get("status") or {}
        restarts = sum(c.get("restartCount", 0) for c in status.get("containerStatuses", ()))
        said = [str(status.get("phase", "Unknown")), f"{_age(pod)} old"]
        said += [f"{restarts} restarts"] if restarts else []
        said += [f"on {pod['spec']['nodeName']}"] if pod.get("spec", {}).get("nodeName") else []
        yield "    ", MARKS[is_pod_ready(pod)], pod["metadata"]["name"], ("  ", ""), ", ".join(said)


def _condition_lines(agent: "AgentObject") -> Iterator[tuple["Part", ...]]:
    from diptych.cli.output.report import MARKS

    yield _field("conditions", "" if agent.conditions else "none: no operator has seen it yet")
    for condition in agent.conditions:
        good = _IS_GOOD.get(condition.type, "True")
        is_good = None if condition.status == "Unknown" else condition.status == good
        if condition.type == "Progressing" and condition.status == "True":
            is_good = None
        yield "    ", MARKS[is_good], f"{condition.type:<13}", condition.words


def _missing_lines(agent: "AgentObject") -> Iterator[tuple["Part", ...]]:
    """Say what is missing, a line each, as the operator has heard it from the pods."""
    from diptych.cli.cluster.agents import shortages

    if lines := shortages(agent.condition("Degraded")):
        yield _field("missing", "")
        for line in lines:
            yield "    ", ("! ", "yellow"), line


def _age(pod: Mapping[str, Any]) -> str:
    since = datetime.fromisoformat(pod["metadata"]["creationTimestamp"])
    seconds = max(int((datetime.now(UTC) - since).total_seconds()), 0)
    for unit, letter in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min")):
        if seconds >= unit:
            return f"{seconds // unit} {letter}"
    return f"{seconds} s"
