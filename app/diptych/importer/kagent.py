"""Translates kagent's agents: `kagent.dev` v1alpha1 to v1alpha3, and `api.kagent.dev`."""

import re
from collections.abc import Sequence
from typing import Any

from diptych.importer.kagent_shared import (
    GROUPS,
    hosted_server,
    model_config,
    move_allowed_namespaces,
    move_headers,
    remote_server,
    server_name,
    tool_server,
)
from diptych.importer.shared import find, move_env, move_replicas, move_resources
from diptych.importer.translation import AnyPath, Refused, Source, Translation
from diptych.manifest.documents import FieldPath

_OWN_LOOP = "every Agent runs in Diptych's own loop, in pods of its own or in an AgentPool"
_NO_MEMORY = "there is no long-term memory; a tool server can be one"
_NO_SKILLS = "there are no skills: write the text into instructions, programs into a tool server"
_CARD = "the agent's card is made of name and description"
_BUILD = "the image must hold diptych: build one FROM ours (docs/tools.md)"
_ACCOUNT = "an Agent has a ServiceAccount of its own, called like it: give that the rights"
NO_EQUAL = {
    "Harness": _OWN_LOOP,
    "ModelProviderConfig": "`diptych check --online` lists a ModelAPI's models",
    "SandboxTemplate": "there are no sandboxes; a tool server can run code",
    "Memory": _NO_MEMORY,
}
_AGENT_DROPS = {
    "stream": "callers choose whether an answer is streamed",
    "runtime": _OWN_LOOP,
    "memory": _NO_MEMORY,
    "context": "old messages are summarized by themselves; spec.context.maxTokens bounds them",
    "shareTools": "there are no links to share a session",
    "a2aConfig": _CARD,
    "imageRegistry": _BUILD,
    "promptTemplate": "the template is rendered into instructions",
    **dict.fromkeys(("iconUrl", "documentationUrl", "version", "provider"), _CARD),
    **dict.fromkeys(("skills", "plugins"), _NO_SKILLS),
    "sandbox": "pods reach what the manifest names; spec.network.extraEgress adds to it",
    **dict.fromkeys(("substrate", "platform", "harness", "harnessRef"), _OWN_LOOP),
}
_POD = ("volumes", "tolerations", "affinity", "topologySpreadConstraints", "nodeSelector")
_DEPLOYMENT = {
    **{part: f"spec.podTemplate.metadata.{part}" for part in ("labels", "annotations")},
    **{part: f"spec.podTemplate.spec.{part}" for part in (*_POD, "imagePullSecrets")},
    "podSecurityContext": "spec.podTemplate.spec.securityContext",
}
_DEPLOYMENT_DROPS = {
    "serviceAccountName": _ACCOUNT,
    "serviceAccountConfig": _ACCOUNT,
    "imageRegistry": _BUILD,
    "imagePullPolicy": "the operator sets it for its image",
    "deploymentAnnotations": "spec.metadata.annotations are those of all that is made of the agent",
}
_MAX_EXAMPLES = 3
_ACTION = re.compile(
    r'\{\{-?\s*(?:include\s*\(?\s*"([^"/]+)/([^"]+)"\s*\)?|\.(AgentName|AgentNamespace|Description))'
    r"\s*-?\}\}"
)
"""What kagent's prompts take from ConfigMaps and from the agent."""


def translate(source: Source, sources: Sequence[Source]) -> list[Translation]:
    """Make the objects of ours that a source becomes. Raises `Refused` or `ConfigError`."""
    match source.kind:
        case "Agent" | "SandboxAgent":
            return _agent(source, sources)
        case "AgentTemplate":
            return _template(source, sources)
        case "ModelConfig":
            return [model_config(source)]
        case "RemoteMCPServer":
            return [remote_server(source, sources)]
        case "ToolServer":
            return [tool_server(source, sources)]
        case "MCPServer":
            return [hosted_server(source)]
        case _:
            raise Refused(source, (), f"no kind here is like {source.kind}")


def _agent(source: Source, sources: Sequence[Source]) -> list[Translation]:
    t = Translation(source, "Agent")
    if t.peek("spec.templateRef") is not None:
        return _of_template(t, sources)
    if t.take_one_of("spec.type", "Declarative", "BYO") == "BYO" or t.peek("spec.byo"):
        service = f"`agents: [{{url: http://SERVICE:8080, as: {source.full_name[1]}}}]`"
        why = "its image is an agent of its own: run it as a Deployment; others call it by "
        t.refuse("spec.byo", why + service)
    names = ("declarative", "template")  # v1alpha1 has neither
    root = next((f"spec.{name}" for name in names if t.peek(f"spec.{name}") is not None), "spec")
    t.move("spec.description", "spec.description")
    _fields(t, root, sources)
    _deployment(t, f"{root}.deployment")
    move_env(t, f"{root}.env", "spec.container.env")
    move_allowed_namespaces(t)
    t.drop_all(_AGENT_DROPS, root)
    t.drop_all(_AGENT_DROPS)
    return [t.finish()]


def _of_template(t: Translation, sources: Sequence[Source]) -> list[Translation]:
    """Write out the template of an Agent of kagent 1.0."""
    name = t.require("spec.templateRef.name")
    template = find(sources, "AgentTemplate", t.source.full_name[0], name)
    if template is None:
        t.refuse("spec.templateRef", f"name the file with the AgentTemplate {name}, too")
    inner = t.of(template)
    t.take("spec.templateRef.name")
    t.put("spec.description", inner.text("spec.description"), f"{name} is written out")
    _fields(inner, "spec", sources)
    inner.drop_all(_AGENT_DROPS)
    inner.drop_all(dict.fromkeys(("labels", "annotations"), "the Agent has its own"), "metadata")
    t.drop_all(_AGENT_DROPS)
    return [t.finish(), inner.finish()]


def _template(source: Source, sources: Sequence[Source]) -> list[Translation]:
    """Make an Agent of a template, unless an Agent is made of it already."""
    if _agent_of(source.full_name, sources):
        return []
    t = Translation(source, "Agent")
    _fields(t, "spec", sources)
    t.drop_all(_AGENT_DROPS)
    return [t.finish()]


def _agent_of(template: tuple[str, str], sources: Sequence[Source]) -> str:
    """Return the name of the Agent that is made of a template."""
    for source in sources:
        spec = source.document.content.get("spec")
        reference = spec.get("templateRef") if isinstance(spec, dict) else None
        name = reference.get("name") if isinstance(reference, dict) else None
        if source.kind == "Agent" and (source.full_name[0], name) == template:
            return source.full_name[1]
    return ""


def _fields(t: Translation, root: str, sources: Sequence[Source]) -> None:
    """Translate what all versions have."""
    t.move(f"{root}.description", "spec.description")
    for skill in t.items(f"{root}.a2aConfig.skills"):
        for item in t.items((*skill, "examples")):
            if len(t.spec.get("examples", ())) < _MAX_EXAMPLES:
                example = t.require(item)
                t.take(item)
                t.add("spec.examples", " ".join(example.split()))
    _instructions(t, root, sources)
    _model(t, f"{root}.modelConfig")
    for item in t.items(f"{root}.tools"):
        t.take_one_of((*item, "type"), "McpServer", "Agent", "Builtin")
        for name in ("mcpServer", "mcp"):
            if t.peek((*item, name)) is not None:
                _server(t, item, (*item, name), sources)
        for name in ("agent", "subAgent"):
            if t.peek((*item, name)) is not None:
                _peer(t, (*item, name), sources)
        t.drop((*item, "headersFrom"), "a delegation carries the caller's identity by itself")
        t.drop((*item, "builtin"), "kagent's own tools are on its tool server: refer to that")
        t.drop((*item, "isolateSessions"), "each delegation has a session of its own")


def _model(t: Translation, path: str) -> None:
    path = f"{path}.name" if isinstance(t.peek(path), dict) else path
    namespace, _, name = t.text(path).rpartition("/")
    t.take(path)
    t.put("spec.model.apiRef.name", name or "default-model-config")
    if namespace:
        t.put("spec.model.apiRef.namespace", namespace)


def _instructions(t: Translation, root: str, sources: Sequence[Source]) -> None:
    """Move the prompt, or the reference to it; a template is rendered."""
    for name in ("systemMessage", "systemPrompt"):
        path = f"{root}.{name}"
        reference = f"{path}From"
        is_template = t.peek(f"{root}.promptTemplate") is not None
        if t.peek(reference) is not None and not is_template:
            kind = t.take_one_of(f"{reference}.type", "ConfigMap", "Secret")
            field = "secretKeyRef" if kind == "Secret" else "configMapKeyRef"
            for part in ("name", "key"):
                t.require(f"{reference}.{part}")
                t.move(f"{reference}.{part}", f"spec.instructionsFrom.{field}.{part}")
        elif is_template and (t.peek(path) or t.peek(reference)):
            text = t.text(path)
            if not text:
                owner, key = (t.require(f"{reference}.{part}") for part in ("name", "key"))
                text = _config_text(t, reference, owner, key, sources)
            rendered = _render(t, root, text, sources)
            t.take(path if t.peek(path) else reference)
            t.put("spec.instructions", rendered, "its template is rendered")
        else:
            t.move(path, "spec.instructions")


def _config_text(
    t: Translation, path: AnyPath, name: str, key: str, sources: Sequence[Source]
) -> str:
    source = find(sources, "ConfigMap", t.source.full_name[0], name)
    data = source.document.content.get("data") if source else None
    text = data.get(key) if isinstance(data, dict) else None
    if not isinstance(text, str):
        t.refuse(path, f"it takes {key} from the ConfigMap {name}: name the file with that, too")
    return text


def _render(t: Translation, root: str, text: str, sources: Sequence[Source]) -> str:
    """Render a prompt that includes keys of ConfigMaps, and names of the agent."""
    maps: dict[str, str] = {}
    for item in t.items(f"{root}.promptTemplate.dataSources"):
        t.take_one_of((*item, "kind"), "ConfigMap")
        maps[t.require((*item, "name"))] = maps[t.take((*item, "alias")) or ""] = t.take(
            (*item, "name")
        )
    own = {
        "AgentName": t.content["metadata"]["name"],
        "AgentNamespace": t.source.full_name[0],
        "Description": t.spec.get("description", ""),
    }
    where = f"{root}.promptTemplate"

    def value(match: re.Match[str]) -> str:
        alias, key, name = match.groups()
        if name:
            return str(own[name])
        return _config_text(t, where, maps.get(alias, alias), key, sources)

    if "{{" in _ACTION.sub("", text):
        t.refuse(where, "the template does more than include texts and names: render it by hand")
    return _ACTION.sub(value, text)


def _server(t: Translation, item: FieldPath, path: FieldPath, sources: Sequence[Source]) -> None:
    """Refer to the tool server of an entry; several entries may name the same one."""
    name, address, why = _server_address(t, path, sources)
    tools = t.spec.setdefault("tools", [])
    index = next((n for n, one in enumerate(tools) if address.items() <= one.items()), len(tools))
    names = (*path, "toolNames" if t.peek((*path, "toolNames")) is not None else "tools")
    entry = f"spec.tools.{index}"
    if index == len(tools):
        while name in {one["name"] for one in tools} | {"result"}:
            name += "-2"
        t.add("spec.tools", {"name": name, **address}, why)
    else:
        t.put(f"{entry}.name", tools[index]["name"])
        if "allow" not in tools[index]:
            t.drop(names, "all tools of the server are allowed already")
        elif not t.items(names):
            del tools[index]["allow"]
    for tool in t.items(names) if not t.is_done(names) else ():
        t.require(tool)
        t.add(f"{entry}.allow", t.take(tool))
    for tool in t.items((*path, "requireApproval")):
        rule = {"match": {"tool": f"{tools[index]['name']}__{t.require(tool)}"}, "do": "ask"}
        t.take(tool)
        t.add("spec.policy", rule)
    move_headers(t, (*item, "headersFrom"), f"{entry}.headers")
    t.drop((*path, "allowedHeaders"), "callers' headers do not reach tools")


def _server_address(
    t: Translation, path: FieldPath, sources: Sequence[Source]
) -> tuple[str, dict[str, Any], str]:
    """Take a reference; a server that is not imported stays where it is."""
    server = (*path, "server") if t.peek((*path, "server")) is not None else path
    is_flat = t.peek((*path, "toolServer")) is not None  # v1alpha1
    where = (*path, "toolServer") if is_flat else (*server, "name")
    prefix, _, name = t.require(where).rpartition("/")
    t.take(where)
    namespace = t.take((*server, "namespace")) or prefix
    kind = t.take((*server, "kind")) or ("ToolServer" if is_flat else "MCPServer")
    group = t.take((*server, "apiGroup")) or ""
    ref: dict[str, Any] = {"name": name, **({"namespace": namespace} if namespace else {})}
    if kind == "Service":
        why = "correct port and path: kagent has them in annotations of the Service"
        return _label(name), {"serviceRef": {**ref, "port": 8000, "path": "/mcp"}}, why
    found = find(sources, kind, namespace or t.source.full_name[0], name)
    if found and group in ("", *GROUPS):
        ref["name"] = server_name(found, sources)
        return _label(ref["name"]), {"ref": ref}, ""
    ref |= {"apiGroup": group or t.source.group, "kind": kind}
    return _label(name), {"ref": ref}, "it is not in these files, and stays where it is"


def _peer(t: Translation, path: FieldPath, sources: Sequence[Source]) -> None:
    kind = next((n for n in ("ref", "templateRef", "agentRef") if t.peek((*path, n))), "name")
    is_binding = kind in ("templateRef", "agentRef")
    where = (*path, kind, "name") if is_binding else (*path, kind)
    prefix, _, name = t.require(where).rpartition("/")
    t.take(where)
    if kind == "templateRef":
        name = _agent_of((t.source.full_name[0], name), sources) or name
    peer = {"name": name}
    if namespace := t.take((*path, "namespace")) or prefix:
        peer["namespace"] = namespace
    if is_binding and t.text((*path, "name")):
        peer["as"] = _label(t.take((*path, "name")))
    t.add("spec.agents", peer)
    for part in ("kind", "apiGroup"):
        t.drop((*path, part), "an agent is found by its name")
    t.drop((*path, "description"), "the agent's own description says when to call it")
    t.drop((*path, "isolation"), "each delegation has a session of its own")


def _label(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:63]


def _deployment(t: Translation, root: str) -> None:
    move_replicas(t, f"{root}.replicas")
    move_env(t, f"{root}.env", "spec.container.env")
    for item in t.items(f"{root}.envFrom"):
        t.add("spec.container.envFrom", t.take(item))
    move_resources(t, f"{root}.resources", "spec.container.resources")
    t.move_all(_DEPLOYMENT, root)
    own = {
        name: value
        for name in ("securityContext", "volumeMounts")
        if (value := t.take(f"{root}.{name}")) is not None
    }
    if own:
        t.add("spec.podTemplate.spec.containers", {"name": "agent", **own})
    for item in t.items(f"{root}.extraContainers"):
        t.add("spec.podTemplate.spec.containers", t.take(item))
    t.move(
        f"{root}.serviceAccountConfig.annotations", "spec.metadata.annotations", why="all has it"
    )
    t.drop_all(_DEPLOYMENT_DROPS, root)
