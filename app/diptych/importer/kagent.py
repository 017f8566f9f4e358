"""Translates kagent's agents: `kagent.dev` v1alpha1 and v1alpha2."""

import re
from collections.abc import Sequence
from typing import Any

from diptych.importer.kagent_shared import (
    hosted_server,
    model_config,
    move_allowed_namespaces,
    move_named,
    remote_server,
    tool_server,
)
from diptych.importer.shared import NO_REPLICAS, move_env, move_resources
from diptych.importer.translation import Source, Translation
from diptych.manifest.documents import FieldPath

GROUPS = ("kagent.dev",)
_CARD = "the agent's card is made of name and description"
_BUILD = "the image must hold diptych: build one FROM ours (docs/tools.md)"
_ACCOUNT = "an Agent has a ServiceAccount of its own, called like it: give that the rights"
_AGENT_DROPS = {
    "stream": "callers choose whether an answer is streamed",
    "memory": "there is no long-term memory; a tool server can be one",
    "context": "old messages are summarized by themselves; spec.context.maxTokens bounds them",
    "a2aConfig": _CARD,
    "promptTemplate": "prompts are no templates here: write the texts into spec.instructions",
    **dict.fromkeys(("iconUrl", "documentationUrl", "version", "provider"), _CARD),
    "skills": "write the text into instructions, programs into a tool server",
    "sandbox": "pods reach what the manifest names; spec.network.extraEgress adds to it",
}
_POD = ("tolerations", "affinity", "topologySpreadConstraints", "nodeSelector")
_DEPLOYMENT = {
    **{part: f"spec.podTemplate.metadata.{part}" for part in ("labels", "annotations")},
    **{part: f"spec.podTemplate.spec.{part}" for part in (*_POD, "imagePullSecrets")},
    "podSecurityContext": "spec.podTemplate.spec.securityContext",
}
_DEPLOYMENT_DROPS = {
    "replicas": NO_REPLICAS,
    "serviceAccountName": _ACCOUNT,
    "serviceAccountConfig": _ACCOUNT,
    "imageRegistry": _BUILD,
    "deploymentAnnotations": "spec.metadata.annotations are those of all that is made of the agent",
    **dict.fromkeys(
        ("volumes", "volumeMounts", "securityContext", "extraContainers"),
        "write it into spec.podTemplate.spec; the agent's own container is called agent",
    ),
}


def translate(source: Source, sources: Sequence[Source]) -> Translation | None:
    """Make our object of a source; None if no kind here is like it."""
    match source.kind:
        case "Agent" | "SandboxAgent":
            return _agent(source, sources)
        case "ModelConfig":
            return model_config(source)
        case "RemoteMCPServer":
            return remote_server(source)
        case "ToolServer":
            return tool_server(source)
        case "MCPServer":
            return hosted_server(source)
        case _:
            return None


def _agent(source: Source, sources: Sequence[Source]) -> Translation:
    t = Translation(source, "Agent")
    if t.take_one_of("spec.type", "Declarative", "BYO") == "BYO" or t.peek("spec.byo"):
        service = f"`agents: [{{url: http://SERVICE:8080, as: {source.full_name[1]}}}]`"
        why = "its image is an agent of its own: run it as a Deployment; others call it by "
        t.refuse("spec.byo", why + service)
    is_flat = t.peek("spec.declarative") is None  # v1alpha1
    root = "spec" if is_flat else "spec.declarative"
    t.move("spec.description", "spec.description")
    _instructions(t, root)
    _model(t, f"{root}.modelConfig")
    for item in t.items(f"{root}.tools"):
        t.take_one_of((*item, "type"), "McpServer", "Agent", "Builtin")
        if t.peek((*item, "mcpServer")) is not None:
            _server(t, item, sources)
        if t.peek((*item, "agent")) is not None:
            _peer(t, (*item, "agent"))
        t.drop((*item, "headersFrom"), "a delegation carries the caller's identity by itself")
        t.drop((*item, "builtin"), "kagent's own tools are on its tool server: refer to that")
        t.drop((*item, "isolateSessions"), "each delegation has a session of its own")
    _deployment(t, f"{root}.deployment")
    move_allowed_namespaces(t)
    t.drop_all(_AGENT_DROPS, root)
    t.drop_all(_AGENT_DROPS)
    return t.finish()


def _model(t: Translation, path: str) -> None:
    namespace, _, name = t.text(path).rpartition("/")
    t.take(path)
    t.put("spec.model.apiRef.name", name or "default-model-config")
    if namespace:
        t.put("spec.model.apiRef.namespace", namespace)


def _instructions(t: Translation, root: str) -> None:
    """Move the prompt, or the reference to it."""
    reference = f"{root}.systemMessageFrom"
    if t.peek(reference) is not None:
        kind = t.take_one_of(f"{reference}.type", "ConfigMap", "Secret")
        field = "secretKeyRef" if kind == "Secret" else "configMapKeyRef"
        for part in ("name", "key"):
            t.require(f"{reference}.{part}")
            t.move(f"{reference}.{part}", f"spec.instructionsFrom.{field}.{part}")
    t.move(f"{root}.systemMessage", "spec.instructions")


def _server(t: Translation, item: FieldPath, sources: Sequence[Source]) -> None:
    """Refer to a tool server; one that is not imported stays where it is."""
    path = (*item, "mcpServer")
    is_flat = t.peek((*path, "toolServer")) is not None  # v1alpha1
    where = (*path, "toolServer" if is_flat else "name")
    prefix, _, name = t.require(where).rpartition("/")
    t.take(where)
    namespace = t.take((*path, "namespace")) or prefix
    kind = t.take((*path, "kind")) or ("ToolServer" if is_flat else "MCPServer")
    group = t.take((*path, "apiGroup")) or ""
    ref: dict[str, Any] = {"name": name, **({"namespace": namespace} if namespace else {})}
    address: dict[str, Any] = {"ref": ref}
    why = ""
    full_name = namespace or t.source.full_name[0], name
    if kind == "Service":
        why = "correct port and path: kagent has them in annotations of the Service"
        address = {"serviceRef": {**ref, "port": 8000, "path": "/mcp"}}
    elif group not in ("", *GROUPS) or all(
        (one.kind, one.full_name) != (kind, full_name) for one in sources
    ):
        why = "it is not in these files, and stays where it is"
        ref |= {"apiGroup": group or GROUPS[0], "kind": kind}
    own_name = _label(name)
    while own_name in {one["name"] for one in t.spec.get("tools", ())} | {"result"}:
        own_name += "-2"
    t.add("spec.tools", {"name": own_name, **address}, why)
    entry = f"spec.tools.{len(t.spec['tools']) - 1}"
    for tool in t.items((*path, "toolNames")):
        t.require(tool)
        t.add(f"{entry}.allow", t.take(tool))
    for tool in t.items((*path, "requireApproval")):
        rule = {"match": {"tool": f"{own_name}__{t.require(tool)}"}, "do": "ask"}
        t.take(tool)
        t.add("spec.policy", rule)
    move_named(t, (*item, "headersFrom"), f"{entry}.headers")
    t.drop((*path, "allowedHeaders"), "callers' headers do not reach tools")


def _peer(t: Translation, path: FieldPath) -> None:
    where = (*path, "ref" if t.peek((*path, "ref")) else "name")  # v1alpha1 has ref
    prefix, _, name = t.require(where).rpartition("/")
    t.take(where)
    namespace = t.take((*path, "namespace")) or prefix
    t.add("spec.agents", {"name": name, **({"namespace": namespace} if namespace else {})})
    for part in ("kind", "apiGroup"):
        t.drop((*path, part), "an agent is found by its name")


def _label(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:63]


def _deployment(t: Translation, root: str) -> None:
    move_env(t, f"{root}.env", "spec.container.env")
    for item in t.items(f"{root}.envFrom"):
        t.add("spec.container.envFrom", t.take(item))
    move_resources(t, f"{root}.resources", "spec.container.resources")
    t.move_all(_DEPLOYMENT, root)
    t.drop_all(_DEPLOYMENT_DROPS, root)
