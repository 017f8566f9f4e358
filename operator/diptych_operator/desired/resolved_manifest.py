"""The manifest as the pod reads it: the same format, its references resolved. Pure.

Tool servers' Services and Agents become URLs; the Service of a Redis stays, as the pod knows its
URL. What refers to Secrets and ConfigMaps stays as it is: the annotation `diptych.dev/references`
says in which folder the pod finds their keys as files. What only the cluster makes something of is
left out, so that changing it does not restart the pod.

Not here: how the files get into the pod (`deployment`), the pod's reading
(`diptych.config.resolver`).
"""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from diptych_operator.desired.references import Surroundings, may_delegate
from diptych_operator.resources.agent import Agent, agent_url
from diptych_operator.resources.kinds import Object

FOLDER = "/etc/diptych"
FILE = "agent.yaml"
REFERENCES = "diptych.dev/references"

_NOT_PLAIN_IN_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
_DIGEST_LENGTH = 10


def resolved_manifest(agent: Agent, around: Surroundings) -> Object:
    """Give the content of the pod's manifest.

    An Agent that is there and does not let this one delegate to it is left out; one that is
    missing stays in, as its URL is known and it may come.
    """
    spec = agent.for_the_pod
    if "tools" in spec:
        spec["tools"] = [_tool(agent, tool) for tool in agent.tools]
    if "agents" in spec:
        given = spec["agents"]
        spec["agents"] = [peer for one in given if (peer := _peer(agent, one, around))]
    if names := [variable["name"] for variable in agent.container.get("env", ())]:
        spec["container"] = {"env": [{"name": name} for name in names]}
    return {
        "apiVersion": "diptych.dev/v1alpha1",
        "kind": "Agent",
        "metadata": {
            "name": agent.name,
            "namespace": agent.namespace,
            "annotations": {REFERENCES: FOLDER},
        },
        "spec": spec,
    }


def config_text(manifest: Object) -> str:
    """Write a manifest as JSON that every YAML reader reads as the same."""
    text = json.dumps(manifest, ensure_ascii=False, indent=1)
    return _NOT_PLAIN_IN_YAML.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def config_name(agent: Agent, text: str) -> str:
    """Name a ConfigMap after what it holds: another content is another object.

    So it is for an Agent that is made again: what the former one left is on its way out.
    """
    digest = hashlib.sha256(f"{agent.uid}\n{text}".encode()).hexdigest()
    return f"{agent.name}-{digest[:_DIGEST_LENGTH]}"


def _tool(agent: Agent, given: Mapping[str, Any]) -> Mapping[str, Any]:
    if "serviceRef" not in given:
        return given
    ref = agent.tool_service(given["serviceRef"])
    namespace, name = ref.service
    path = given["serviceRef"].get("path", "/mcp")
    rest = {field: value for field, value in given.items() if field != "serviceRef"}
    return {**rest, "url": f"http://{name}.{namespace}.svc:{ref.port}{path}"}


def _peer(agent: Agent, given: Mapping[str, Any], around: Surroundings) -> Mapping[str, Any] | None:
    if "name" not in given:
        return given
    peer = agent.peer(given)
    if not may_delegate(agent, peer, around):
        return None
    return {
        "as": peer.visible_name,
        "url": agent_url(peer.agent),
        "shareContext": peer.shares_context,
    }
