"""`diptych get`: lists the Agents of a cluster, or describes one."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from diptych.cli.commands.options import AllNamespaces, Context, Kubeconfig, Namespace
from diptych.cli.output.marks import Mark
from diptych.errors import ConfigError

if TYPE_CHECKING:
    from diptych.cli.cluster.agents import AgentObject, Condition
    from diptych.cli.cluster.kubectl import Kubectl
    from diptych.cli.output.screen import Line

OutputFormat: TypeAlias = Literal["json", "yaml", "wide", "name"]
_FALSE_IS_OK = {
    *("Progressing", "Degraded", "ToolsDrifted", "Drifted", "AccessOpen", "Stalled", "Reconciling")
}
"""Conditions whose good status is False."""
_AT_REST = {"UpToDate", "ScaledToZero"}
"""Reasons for Progressing=False that are no obstacle."""
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def get(
    agent: Annotated[
        str | None,
        typer.Argument(metavar="AGENT", help="One Agent: its name, or namespace/name."),
    ] = None,
    output: Annotated[
        OutputFormat | None, typer.Option("--output", "-o", help="As kubectl prints it.")
    ] = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
    all_namespaces: AllNamespaces = False,
) -> None:
    """List the Agents of a namespace, or describe one.

    The description has its model, its URL, its pods, its conditions, and what it misses.

    Examples: `diptych get -A`, `diptych get team/helper`
    """
    from diptych.cli.cluster.agents import AGENTS, AgentName, find_agent
    from diptych.cli.cluster.flags import ClusterFlags
    from diptych.cli.cluster.kubectl import Kubectl
    from diptych.cli.output.report import print_report

    kubectl = Kubectl(ClusterFlags(kubeconfig, context, namespace))
    output_flag = [f"--output={output}"] if output else []
    if agent is None:
        scope = ["--all-namespaces"] if all_namespaces else []
        text = kubectl.text("get", AGENTS, *scope, *output_flag)
        if text:
            typer.echo(text, nl=False)
        else:
            typer.echo(_no_agents_text(kubectl, all_namespaces=all_namespaces), err=True)
        return
    if all_namespaces:
        raise ConfigError(f"--all-namespaces goes without a name; or ask for namespace/{agent}")
    wanted = find_agent(kubectl, AgentName.require(agent))
    in_namespace = kubectl.in_namespace(wanted.namespace)
    if output:
        typer.echo(in_namespace.text("get", AGENTS, wanted.name, *output_flag), nl=False)
    else:
        print_report(_description(in_namespace, wanted))


def _no_agents_text(kubectl: "Kubectl", *, all_namespaces: bool) -> str:
    where = "in any namespace" if all_namespaces else f"in namespace {kubectl.namespace()}"
    return f"there are no Agents {where}; make one with `kubectl apply -f agent.yaml`"


def _description(kubectl: "Kubectl", agent: "AgentObject") -> Iterator["Line"]:
    from diptych.cli.cluster.agents import pods_of

    namespace = (f"  in namespace {agent.namespace}", "dim")
    yield Mark.of(agent.is_ready).value, (agent.name, "bold"), namespace
    if description := agent.spec.get("description"):
        yield (f"  {description}",)
    if agent.advice:
        yield (f"  {agent.advice}",)
    yield ("",)
    yield _field("model", _model(agent.spec))
    yield _field("address", agent.status.get("url") or "none yet")
    yield from _references("tools", agent.spec.get("tools", ()))
    yield from _references("agents", agent.spec.get("agents", ()))
    yield from _pod_lines(pods_of(kubectl, agent))
    yield from _condition_lines(agent)
    yield from _missing_lines(agent)


def _field(name: str, text: str) -> "Line":
    return (f"  {name:<11}", "dim"), text


def _model(spec: Mapping[str, Any]) -> str:
    model = spec.get("model") or {}
    variables = (spec.get("container") or {}).get("env", ())
    if any(variable.get("name") == "DEBUG_MOCK_RESPONSES" for variable in variables):
        return "a script (DEBUG_MOCK_RESPONSES)"
    return f"{model.get('name')} at {model.get('endpoint')}" if model else "none"


def _references(name: str, items: Sequence[Mapping[str, Any]]) -> Iterator["Line"]:
    names = [str(item.get("as") or item.get("name") or item.get("url")) for item in items]
    if names:
        yield _field(name, ", ".join(names))


def _pod_lines(pods: Sequence[Mapping[str, Any]]) -> Iterator["Line"]:
    from diptych.cli.cluster.agents import is_pod_ready

    yield _field("pods", f"{sum(map(is_pod_ready, pods))} of {len(pods)} ready" if pods else "none")
    for pod in pods:
        status = pod.get("status") or {}
        restarts = sum(c.get("restartCount", 0) for c in status.get("containerStatuses", ()))
        details = [str(status.get("phase", "Unknown")), f"{_age(pod)} old"]
        details += [f"{restarts} restarts"] if restarts else []
        details += [f"on {pod['spec']['nodeName']}"] if pod.get("spec", {}).get("nodeName") else []
        mark = Mark.of(is_pod_ready(pod)).value
        yield "    ", mark, pod["metadata"]["name"], ("  ", ""), ", ".join(details)


def _condition_lines(agent: "AgentObject") -> Iterator["Line"]:
    yield _field("conditions", "" if agent.conditions else "none: no operator has seen it yet")
    if agent.staleness:
        yield "    ", Mark.FAILED.value, agent.staleness
    for condition in agent.conditions:
        mark = Mark.NOTE if agent.staleness else _mark(condition)
        yield "    ", mark.value, f"{_claim(condition):<16}", condition.text


def _claim(condition: "Condition") -> str:
    """Give a condition's type so that it reads as it is: `not Degraded`."""
    is_denied = condition.type in _FALSE_IS_OK and condition.status == "False"
    return f"not {condition.type}" if is_denied else condition.type


def _mark(condition: "Condition") -> Mark:
    match condition.type, condition.status:
        case (_, "Unknown") | ("Progressing" | "Reconciling" | "AccessOpen", "True"):
            return Mark.NOTE
        case ("Available", "False") if condition.reason in _AT_REST:
            return Mark.NOTE
        case ("Progressing", _) if condition.reason not in _AT_REST:
            return Mark.FAILED
        case kind, status:
            return Mark.of(status == ("False" if kind in _FALSE_IS_OK else "True"))


def _missing_lines(agent: "AgentObject") -> Iterator["Line"]:
    """Give one line per missing dependency, as the operator has learned it from the pods."""
    from diptych.cli.cluster.agents import missing_dependencies

    if lines := missing_dependencies(agent.condition("Degraded")):
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
