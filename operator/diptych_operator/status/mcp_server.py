"""The conditions of an MCPServer, and its whole status. Pure.

Verified is the server's answer to the operator's handshake. The operator reads no Secret, so
a remote server whose headers are in one is not asked: the Agents that use it say how it is.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from diptych_operator.resources.kinds import Object
from diptych_operator.resources.mcp_server import McpServer
from diptych_operator.status.advice import FINE
from diptych_operator.status.condition import MAX_MESSAGE, Condition, Problem, written
from diptych_operator.status.owner import OwnerInputs, accepted, kstatus, pod_counts, shortened

MAX_TOOLS = 256
_STARTING = "is starting"  # a pod's reason as long as it loads its tools


@dataclass(frozen=True, slots=True)
class Handshake:
    """A server's answer: the digests of its tools by name, or the reason why it has none."""

    tools: Mapping[str, str] = field(default_factory=dict)
    server_info: Mapping[str, str] = field(default_factory=dict)
    reason: str | None = None


def handshake_of(answers: Mapping[str, Object], pods: Sequence[Object]) -> Handshake | None:
    """Read what the newest pod of our image answered to `/ready`; None while it starts."""
    newest_first = sorted(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp", "")))
    names = [pod["metadata"]["name"] for pod in reversed(newest_first)]
    answer = next((answers[name] for name in names if name in answers), None)
    if answer is None or answer.get("reason") == _STARTING:
        return None
    if (reason := answer.get("reason")) is not None:
        return Handshake(reason=shortened(reason))
    try:
        tools = {shortened(tool["name"]): shortened(tool["digest"]) for tool in answer["tools"]}
        info = answer.get("serverInfo") or {}
        return Handshake(tools, {name: shortened(info.get(name)) for name in ("name", "version")})
    except (AttributeError, KeyError, TypeError):
        return Handshake(reason="its pod does not answer as `diptych mcp-server` does")


@dataclass(frozen=True, slots=True)
class ServerInputs(OwnerInputs):
    """The inputs of an MCPServer's conditions; `handshake` is None until it was asked."""

    handshake: Handshake | None = None


def mcp_server_status(server: McpServer, inputs: ServerInputs, now: str) -> dict[str, Any]:
    """Return the whole status. `now` becomes the time of conditions whose status has changed."""
    shown = tuple(_conditions(server, inputs))
    found = inputs.handshake or Handshake()
    tools = [{"name": name, "digest": value} for name, value in found.tools.items()]
    info = {name: shortened(text) for name, text in found.server_info.items()}
    is_there = inputs.rejection is None or None not in inputs.deployments
    return {
        "advice": _advice(shown)[:MAX_MESSAGE],
        "observedGeneration": server.generation,
        **({"address": {"url": server.url}} if is_there else {}),
        **(pod_counts(inputs, server.selector_labels) if server.is_hosted else {}),
        # Left out where empty: applied as empty, a field that had entries becomes null.
        **({"tools": tools[:MAX_TOOLS]} if tools else {}),
        "toolCount": len(tools),
        **({"serverInfo": info} if info else {}),
        "agents": inputs.agents,
        "conditions": written(server, shown, now),
    }


def _conditions(server: McpServer, inputs: ServerInputs) -> Iterator[Condition]:
    verified = _verified(server, inputs.handshake)
    available = _available(server, inputs, verified)
    yield accepted(inputs)
    yield available
    yield verified
    yield _ready(server, inputs, available, verified)
    if server.pins:
        yield _tools_drifted(server, inputs.handshake)
    yield from kstatus(inputs)


def _available(server: McpServer, inputs: ServerInputs, verified: Condition) -> Condition:
    if not server.is_hosted:
        return Condition("Available", verified.status, verified.reason, verified.message)
    message = f"{inputs.available} of {server.replicas} pods can take calls."
    if inputs.available:
        return Condition("Available", "True", "Available", message)
    is_asked_for = None not in inputs.deployments and server.replicas == 0
    return Condition(
        "Available", "False", "ScaledToZero" if is_asked_for else "NoPodAvailable", message
    )


def _verified(server: McpServer, found: Handshake | None) -> Condition:
    if server.needs_credentials:
        message = (
            "It needs a Secret or OAuth tokens, which the operator does not have; the Agents that "
            "use it say whether it answers."
        )
        return Condition("Verified", "Unknown", "NeedsSecret", message)
    if found is None:
        return Condition("Verified", "Unknown", "NotAsked", "It has not answered yet.")
    if found.reason is not None:
        return Condition("Verified", "False", "HandshakeFailed", found.reason)
    count = len(found.tools)
    message = f"It lists {count} {'tool' if count == 1 else 'tools'}."
    return Condition("Verified", "True", "Verified", message)


def _ready(
    server: McpServer, inputs: ServerInputs, available: Condition, verified: Condition
) -> Condition:
    if server.is_hosted:
        if None in inputs.deployments:
            problem = inputs.obstacle
            reason = problem.reason if problem else "RollingOut"
            return Condition("Ready", "False", reason, "There are no pods yet.")
        if server.replicas == 0:
            message = "The server is scaled to no pods, as its manifest says."
            return Condition("Ready", "True", "ScaledToZero", message)
        if not inputs.is_rolled_out:
            return _rolling(inputs, available, verified)
        if obstacle := inputs.obstacle:
            message = f"The last good revision keeps serving. {obstacle.message}"
            return Condition("Ready", "True", "LastGoodRevision", message)
    if verified.reason == "NeedsSecret":
        return Condition("Ready", "True", "NotVerified", verified.message)
    if verified.status != "True":
        return Condition("Ready", verified.status, verified.reason, verified.message)
    return Condition("Ready", "True", "Ready", verified.message)


def _rolling(inputs: ServerInputs, available: Condition, verified: Condition) -> Condition:
    """Return the problem that keeps the newest pods from serving."""
    problem = inputs.pods_problem
    if problem is None and verified.status == "False":
        problem = Problem(verified.reason, verified.message)
    reason = problem.reason if problem else "RollingOut"
    message = problem.message if problem else available.message
    if available.status == "True":
        end = "" if message.endswith(".") else "."
        message += f"{end} Pods that can take calls go on meanwhile."
    return Condition("Ready", "False", reason, message)


def _tools_drifted(server: McpServer, found: Handshake | None) -> Condition:
    if found is None or found.reason is not None:
        former = {c["type"]: c for c in server.status.get("conditions", ())}.get("ToolsDrifted")
        if former:
            return Condition("ToolsDrifted", former["status"], former["reason"], former["message"])
        return Condition("ToolsDrifted", "Unknown", "NotAsked", "It has not answered yet.")
    if drifted := list(server.drifted(found.tools)):
        message = (
            f"Changed since pinned: {', '.join(drifted)}. Look at these tools, then write the "
            "digests of status.tools into spec.tools.pin."
        )
        return Condition("ToolsDrifted", "True", "ToolsChanged", message)
    return Condition("ToolsDrifted", "False", "AsPinned", "No tool differs from its pin.")


def _advice(shown: Sequence[Condition]) -> str:
    """Return a sentence about what is wrong, for people."""
    by_type = {condition.type: condition for condition in shown}
    for kind, good in (("Accepted", "True"), ("Ready", "True"), ("ToolsDrifted", "False")):
        if kind in by_type and by_type[kind].status != good:
            return f"{'Serving, but: ' if kind == 'ToolsDrifted' else ''}{by_type[kind].message}"
    return f"Serving. {FINE}"
