"""The manifest as the pod reads it: the same format, its references resolved. Pure.

Services of tool servers become URLs, and `sessions.adopt` has the key of the Agent's sessions.
Agents get their namespace, and the Service of a Redis stays, because the pod can make these URLs by
itself. References to Secrets and ConfigMaps stay too: the annotation `diptych.dev/references` names
the folder where the pod finds their keys as files. Fields that the pod does not read are left out,
so that changing them does not restart it.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from diptych_operator.desired.references import ObservedState, may_delegate, may_use
from diptych_operator.resources.agent import Agent
from diptych_operator.resources.kinds import Object

FOLDER = "/etc/diptych"
FILE = "agent.yaml"
REFERENCES = "diptych.dev/references"
PLATFORM_POLICY = "diptych.dev/policy"
"""The annotation with the platform's rules for all Agents, as JSON; the pod puts them beside the
Agent's own."""

_NOT_PLAIN_IN_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
_DIGEST_LENGTH = 10


def resolved_manifest(
    agent: Agent, observed: ObservedState, policy: Sequence[Mapping[str, Any]] = ()
) -> Object:
    """Return the content of the pod's manifest; `policy` are the platform's rules.

    A peer that exists and does not allow delegation is left out, and so is a tool server of another
    namespace that does not consent. A peer that does not exist stays:
    its URL follows from its name, and it may be created later.
    """
    spec = agent.pod_spec_fields
    if agent.model_apis:  # it is in a file of its own
        spec.pop("model")
    if "tools" in spec:
        tools = (_tool(agent, tool, observed) for tool in agent.tools)
        spec["tools"] = [tool for tool in tools if tool]
    if "agents" in spec:
        peers = (_peer(agent, entry, observed) for entry in spec["agents"])
        spec["agents"] = [peer for peer in peers if peer]
    if agent.redis:
        spec["sessions"] = _sessions(agent)
    if variables := agent.container.get("env"):
        names = [{"name": variable["name"]} for variable in variables]
        spec["container"] = {"env": variables if agent.pool else names}
    annotations = {REFERENCES: FOLDER}
    if policy:
        annotations[PLATFORM_POLICY] = json.dumps(list(policy), sort_keys=True)
    return {
        "apiVersion": "diptych.dev/v1alpha1",
        "kind": "Agent",
        "metadata": {
            "name": agent.name,
            "namespace": agent.namespace,
            "annotations": annotations,
        },
        "spec": spec,
    }


def manifest_text(manifest: Object) -> str:
    """Write a manifest as JSON that every YAML parser reads as the same value."""
    text = json.dumps(manifest, ensure_ascii=False, indent=1)
    return _NOT_PLAIN_IN_YAML.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def versioned_name(agent: Agent, text: str) -> str:
    """Name a ConfigMap after its content, the Agent's uid and its `spec.metadata`.

    An Agent that is deleted and created again gets another name, because the garbage collector
    still deletes the ConfigMap of the former one.
    """
    metadata = agent.spec.get("metadata")
    marks = f"{json.dumps(metadata, sort_keys=True)}\n" if metadata else ""
    digest = hashlib.sha256(f"{agent.uid}\n{marks}{text}".encode()).hexdigest()
    return f"{agent.name}-{digest[:_DIGEST_LENGTH]}"


def _sessions(agent: Agent) -> Mapping[str, Any]:
    """Return `spec.sessions` with the key of the Agent's sessions; `onDelete` is the operator's."""
    merged = {**agent.spec["sessions"], "adopt": agent.sessions_key}
    return {name: value for name, value in merged.items() if name != "onDelete"}


def _tool(
    agent: Agent, tool: Mapping[str, Any], observed: ObservedState
) -> Mapping[str, Any] | None:
    if "serviceRef" not in tool:
        return tool
    ref = agent.tool_service(tool["serviceRef"])
    if not may_use(agent, ref, observed):
        return None
    namespace, name = ref.name
    path = tool["serviceRef"].get("path", "/mcp")
    rest = {field: value for field, value in tool.items() if field != "serviceRef"}
    return {**rest, "url": f"http://{name}.{namespace}.svc:{ref.port}{path}"}


def _peer(
    agent: Agent, entry: Mapping[str, Any], observed: ObservedState
) -> Mapping[str, Any] | None:
    if "name" not in entry:
        return entry
    peer = agent.peer(entry)
    if not may_delegate(agent, peer, observed):
        return None
    namespace, name = peer.name
    return {
        "name": name,
        "namespace": namespace,
        "as": peer.visible_name,
        "shareContext": peer.shares_context,
    }
