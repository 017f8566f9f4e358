"""Faults that people make by hand: how each is made and mended, and what must tell of it.

Each has an Agent of its own, so that many stand side by side in one namespace.
"""

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness import objects
from harness.commands import CommandFailed
from harness.kubectl import eventually
from harness.objects import agent
from harness.space import Space

HELLO = ["{}", "Hello!"]
_changes = itertools.count(1)
Object = dict[str, Any]


@dataclass(frozen=True)
class Fault:
    """`before` is applied first, and the Agent waited for if `is_ready`. `told` is the condition
    with its status and reason that must name the fault. `uses` names the servers and Agents on
    whose pods the fault depends, beside its own Agent's.
    """

    what: str
    name: str
    told: tuple[str, str, str]
    before: Sequence[Object]
    make: Callable[[Space], Any]
    mend: Callable[[Space], Any]
    is_ready: bool = True
    has_warning: bool = True
    labels: dict[str, str] = field(default_factory=dict)
    uses: tuple[str, ...] = ()


def apply(*made: Object) -> Callable[[Space], Any]:
    return lambda space: space.kubectl.apply(*made)


def run(*command: str) -> Callable[[Space], Any]:
    return lambda space: space.kubectl(*command)


def edited(what: str, name: str, told: tuple[str, str, str], **spec: Any) -> Fault:
    """Give the fault of an Agent whose manifest is edited so, and then put right again."""
    good, bad = agent(name, HELLO), agent(name, HELLO)
    container = bad["spec"]["container"] | spec.pop("container", {})
    bad["spec"] |= {**spec, "container": container}
    return Fault(what, name, told, [good], apply(bad), apply(good))


def template(**spec: Any) -> dict[str, Any]:
    return {"spec": spec}


def _init(image: str) -> dict[str, Any]:
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    return {"name": "first", "image": image, "command": ["true"], "securityContext": security}


MANIFEST = [
    edited(
        "an image that cannot be pulled",
        "image",
        ("Ready", "False", "ImagePullFailed"),
        container={"image": "registry.invalid/nothing:none"},
    ),
    edited(
        "an init container's image",
        "init-image",
        ("Ready", "False", "ImagePullFailed"),
        podTemplate=template(initContainers=[_init("registry.invalid/init:none")]),
    ),
    edited(
        "a mistyped field of podTemplate",
        "field",
        ("Accepted", "False", "Refused"),
        podTemplate=template(nodeSelectr={"a": "b"}),
    ),
    edited(
        "a podTemplate of the wrong type",
        "type",
        ("Accepted", "False", "Refused"),
        podTemplate=template(nodeSelector=["a"]),
    ),
    edited(
        "a malformed quantity",
        "quantity",
        ("Accepted", "False", "Refused"),
        podTemplate=template(
            containers=[{"name": "agent", "resources": {"limits": {"memory": "abc"}}}]
        ),
    ),
    edited(
        "a podTemplate that takes the pods from their Service",
        "labels",
        ("Accepted", "False", "PodTemplateInvalid"),
        podTemplate={"metadata": {"labels": {"app.kubernetes.io/instance": "another"}}},
    ),
    edited(
        "no node has the labels that are asked for",
        "selector",
        ("Ready", "False", "Unschedulable"),
        podTemplate=template(nodeSelector={"disk": "none"}),
    ),
    edited(
        "more CPU than any node has",
        "cpu",
        ("Ready", "False", "Unschedulable"),
        container={"resources": {"requests": {"cpu": "500"}}},
    ),
    edited(
        "too little memory",
        "memory",
        ("Ready", "False", "OutOfMemory"),
        container={"resources": {"limits": {"memory": "30Mi"}, "requests": {"memory": "30Mi"}}},
    ),
    edited(
        "a setting that the agent cannot use",
        "config",
        ("Ready", "False", "ConfigError"),
        container={"env": [{"name": "DEBUG_MOCK_RESPONSES", "value": "[no JSON"}]},
    ),
    edited(
        "a container that crashes",
        "crash",
        ("Ready", "False", "CrashLooping"),
        podTemplate=template(containers=[{"name": "agent", "command": ["false"]}]),
    ),
    edited(
        "variables of a Secret that is not there",
        "variables",
        ("Ready", "False", "ContainerNotMade"),
        container={"envFrom": [{"secretRef": {"name": "nowhere"}}]},
    ),
    Fault(
        "a volume's ConfigMap that is not there",
        "volume",
        ("Ready", "False", "VolumeNotMounted"),
        [],
        apply(
            {
                **agent("volume", HELLO),
                "spec": {
                    **agent("volume", HELLO)["spec"],
                    "podTemplate": template(
                        volumes=[{"name": "ca", "configMap": {"name": "corporate-ca"}}],
                        containers=[
                            {
                                "name": "agent",
                                "volumeMounts": [{"name": "ca", "mountPath": "/etc/ca"}],
                            }
                        ],
                    ),
                },
            }
        ),
        lambda space: (
            space.kubectl("create", "configmap", "corporate-ca", "--from-literal=ca.crt=x"),
            space.kubectl("delete", "pods", "-l", "app.kubernetes.io/instance=volume"),
        ),
        is_ready=False,
    ),
    Fault(
        "a Service of somebody else has the name",
        "taken",
        ("Accepted", "False", "NameConflict"),
        [
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": "taken"},
                "spec": {"ports": [{"port": 80}]},
            }
        ],
        apply(agent("taken", HELLO)),
        run("delete", "service", "taken"),
        is_ready=False,
    ),
    Fault(
        "a paused Deployment",
        "paused",
        ("Progressing", "False", "Paused"),
        [agent("paused", HELLO)],
        lambda space: (
            space.kubectl("rollout", "pause", "deployment/paused"),
            space.kubectl.apply(agent("paused", HELLO, instructions="New.")),
        ),
        run("rollout", "resume", "deployment/paused"),
    ),
    Fault(
        "scaled to 0",
        "zero",
        ("Ready", "True", "ScaledToZero"),
        [agent("zero", HELLO)],
        run("scale", "agents.diptych.dev/zero", "--replicas=0"),
        run("scale", "agents.diptych.dev/zero", "--replicas=1"),
        has_warning=False,
    ),
]


def model_of(host: str, **rest: Any) -> dict[str, Any]:
    return {"name": "m", "endpoint": f"http://{host}:8000/v1", **rest}


def asked(*tools: Object) -> dict[str, Any]:
    return {"tools": list(tools)}


def _key(secret: str) -> dict[str, Any]:
    return {"secretKeyRef": {"name": secret, "key": "api-key"}}


def tool_agent(name: str, service: str, port: int = 8000) -> Object:
    ref = {"name": service, "port": port}
    return agent(name, HELLO, tools=[{"name": "demo", "serviceRef": ref}])


def closed(app: str) -> Object:
    """A policy of somebody else that lets nobody in to a server."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": f"closed-{app}"},
        "spec": {"podSelector": {"matchLabels": {"app": app}}, "policyTypes": ["Ingress"]},
    }


def dependencies(space: Space) -> list[Fault]:
    """Give the faults of what Agents use; servers of their own are in `before`."""
    return [*_of_models(space), *_of_tools(space), *_of_peers(space), *_of_stores()]


def _of_models(space: Space) -> list[Fault]:
    models = {name: objects.model_server(name, space.image) for name in ("m-gone", "m-key")}
    keyed = agent("key", None, model=model_of("m-key", apiKey=_key("models")))
    return [
        Fault(
            "a model's server that is away",
            "model",
            ("Degraded", "True", "ModelUnavailable"),
            [],
            apply(*models["m-gone"][1:], agent("model", None, model=model_of("m-gone"))),
            apply(*models["m-gone"]),
            is_ready=False,
            uses=("m-gone",),
        ),
        Fault(
            "a model's host that DNS does not know",
            "dns",
            ("Degraded", "True", "ModelUnavailable"),
            [],
            apply(agent("dns", None, model={"name": "m", "endpoint": "http://no.invalid/v1"})),
            apply(agent("dns", HELLO)),
            is_ready=False,
        ),
        Fault(
            "a model that refuses the key",
            "refused",
            ("Degraded", "True", "ModelUnavailable"),
            objects.refusing_server("m-refuses", space.image),
            apply(agent("refused", None, model=model_of("m-refuses"))),
            apply(agent("refused", HELLO)),
            is_ready=False,
            uses=("m-refuses",),
        ),
        Fault(
            "a key that is not there",
            "key",
            ("Degraded", "True", "KeyMissing"),
            models["m-key"],
            apply(keyed),
            lambda space: (
                space.kubectl.apply(objects.secret("models", api_key="sk-1")),
                space.look_after_mounts("key"),
            ),
            is_ready=False,
            uses=("m-key",),
        ),
    ]


def _of_tools(space: Space) -> list[Fault]:
    tools = {name: objects.tool_server(name, space.image) for name in ("gone", "shut", "port")}
    return [
        Fault(
            "a tool server that dies",
            "tool",
            ("Degraded", "True", "ToolServerUnavailable"),
            [*tools["gone"], tool_agent("tool", "gone")],
            run("delete", "pod", "gone"),
            apply(*tools["gone"]),
            uses=("gone",),
        ),
        Fault(
            "a tool server that a NetworkPolicy closes",
            "policy",
            ("Degraded", "True", "ToolServerUnavailable"),
            [*tools["shut"], closed("shut")],
            apply(tool_agent("policy", "shut")),
            run("delete", "networkpolicy", "closed-shut"),
            is_ready=False,
            uses=("shut",),
        ),
        Fault(
            "a tool's Service that is not there",
            "service",
            ("ResolvedRefs", "False", "ServiceNotFound"),
            [agent("service", HELLO)],
            apply(tool_agent("service", "nowhere")),
            apply(agent("service", HELLO)),
        ),
        Fault(
            "a port that the Service does not have",
            "port",
            ("ResolvedRefs", "False", "ServicePortNotFound"),
            tools["port"],
            apply(tool_agent("wrong-port", "port", 9999)),
            apply(tool_agent("wrong-port", "port")),
            is_ready=False,
            labels={"agent": "wrong-port"},
        ),
    ]


def foreign_service(space: Space) -> dict[str, Any]:
    return {"name": "aide", "namespace": f"{space.name}-2", "port": 8000}


def _of_peers(space: Space) -> list[Fault]:
    return [
        Fault(
            "a peer that is not there",
            "peer",
            ("ResolvedRefs", "False", "AgentNotFound"),
            [],
            apply(agent("peer", HELLO, agents=[{"name": "aide"}])),
            apply(agent("aide", HELLO)),
            is_ready=False,
        ),
        Fault(
            "a peer without pods",
            "lonely",
            ("Degraded", "True", "AgentUnavailable"),
            [agent("helper", HELLO), agent("lonely", HELLO, agents=[{"name": "helper"}])],
            run("scale", "agents.diptych.dev/helper", "--replicas=0"),
            run("scale", "agents.diptych.dev/helper", "--replicas=1"),
            uses=("helper",),
        ),
        Fault(
            "no right to ask another namespace's Agent",
            "stranger",
            ("ResolvedRefs", "False", "AgentNotAllowed"),
            [],
            apply(
                agent("stranger", HELLO, agents=[{"name": "aide", "namespace": f"{space.name}-2"}])
            ),
            apply(agent("stranger", HELLO)),
            is_ready=False,
        ),
        Fault(
            "another namespace's Service that does not consent",
            "uninvited",
            ("Degraded", "True", "ServiceNotAllowed"),
            [agent("uninvited", HELLO)],
            apply(
                agent(
                    "uninvited",
                    HELLO,
                    tools=[{"name": "demo", "serviceRef": foreign_service(space)}],
                )
            ),
            apply(agent("uninvited", HELLO)),
        ),
    ]


def redis_cli(name: str, *words: str) -> Callable[[Space], Any]:
    return run("exec", f"deployment/{name}", "--", "redis-cli", "-a", "right", *words)


def _of_stores() -> list[Fault]:
    stored = agent("store", HELLO, sessions={"redis": {"serviceRef": {"name": "redis"}}})
    return [
        Fault(
            "a Redis that is away",
            "store",
            ("Ready", "False", "StoreUnavailable"),
            [stored],
            run("scale", "deployment/redis", "--replicas=0"),
            run("scale", "deployment/redis", "--replicas=1"),
            uses=("redis",),
        ),
        Fault(
            "a Redis that refuses the login",
            "login",
            ("Ready", "False", "StoreUnavailable"),
            [objects.secret("store", url="redis://:wrong@guarded:6379")],
            apply(agent("login", HELLO, sessions={"redis": {"urlFrom": _url("store")}})),
            lambda space: (
                space.kubectl.apply(objects.secret("store", url="redis://:right@guarded:6379")),
                space.look_after_mounts("login"),
            ),
            is_ready=False,
            uses=("guarded",),
        ),
        Fault(
            "a Redis that is full",
            "full",
            ("Ready", "False", "StoreFull"),
            [
                *objects.redis("brim", "right"),
                objects.secret("brim", url="redis://:right@brim:6379"),
                agent("full", HELLO, sessions={"redis": {"urlFrom": _url("brim")}}),
            ],
            redis_cli("brim", "CONFIG", "SET", "maxmemory", "1"),
            redis_cli("brim", "CONFIG", "SET", "maxmemory", "0"),
            uses=("brim",),
        ),
    ]


def _url(secret: str) -> dict[str, Any]:
    return {"secretKeyRef": {"name": secret, "key": "url"}}


def changed(name: str) -> Callable[[Space], Any]:
    """Give a change of an Agent that rolls its pods, another one each time."""
    return apply(agent(name, HELLO, instructions=f"Change {next(_changes)}."))


def gone_webhook(space: Space, name: str = "webhook") -> None:
    space.kubectl.apply(objects.gone_webhook(space.name))
    write = ("annotate", "deployment", name, "a=b", "--dry-run=server")

    def is_asked() -> bool:
        try:
            space.kubectl(*write)
        except CommandFailed:
            return True
        return False

    eventually(is_asked, seconds=30, what="the API has taken up the webhook")
    changed(name)(space)


def pod_quota(space: Space, name: str = "quota") -> None:
    """Allow one pod, and change an Agent once that is in force."""
    space.kubectl("create", "quota", "few", "--hard=pods=1")
    eventually(
        lambda: space.kubectl.get("quota", "few")["status"].get("used"),
        seconds=30,
        what="the quota is counted",
    )
    changed(name)(space)


def limit_range(space: Space) -> None:
    limit = {"type": "Container", "max": {"memory": "64Mi"}}
    space.kubectl.apply(
        {
            "apiVersion": "v1",
            "kind": "LimitRange",
            "metadata": {"name": "small"},
            "spec": {"limits": [limit]},
        }
    )
    changed("limits")(space)


def without_right(space: Space) -> None:
    """Take the operator's right to change Deployments away."""
    role = space.kubectl.get("clusterrole", "diptych-e2e:diptych")
    rules = [r for r in role["rules"] if "deployments" not in r["resources"]]
    kept = [{"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["list", "watch"]}]
    _patch_role(space, [*rules, *kept])
    changed("right")(space)


def with_right(space: Space) -> None:
    role = space.kubectl.get("clusterrole", "diptych-e2e:diptych")
    rules = [r for r in role["rules"] if "deployments" not in r["resources"]]
    verbs = ["list", "watch", "create", "patch", "delete"]
    given = [{"apiGroups": ["apps"], "resources": ["deployments"], "verbs": verbs}]
    _patch_role(space, [*rules, *given])


def _patch_role(space: Space, rules: list[Object]) -> None:
    patch = json.dumps({"rules": rules})
    space.kubectl("patch", "clusterrole", "diptych-e2e:diptych", "--type=merge", "-p", patch)


def cordoned(space: Space) -> None:
    (node, *_) = space.kubectl.list("nodes")
    space.kubectl("cordon", node["metadata"]["name"])
    changed("node")(space)


def uncordoned(space: Space) -> None:
    (node, *_) = space.kubectl.list("nodes")
    space.kubectl("uncordon", node["metadata"]["name"])


NAMESPACE = [
    Fault(
        "a quota that blocks a rollout",
        "quota",
        ("Progressing", "False", "PodsRefused"),
        [agent("quota", HELLO)],
        pod_quota,
        run("delete", "quota", "few"),
    ),
    Fault(
        "a quota of Services",
        "services",
        ("Progressing", "False", "Denied"),
        [],
        lambda space: (
            space.kubectl("create", "quota", "none", "--hard=count/services=0"),
            space.kubectl.apply(agent("services", HELLO)),
        ),
        run("delete", "quota", "none"),
        is_ready=False,
    ),
    Fault(
        "a LimitRange that refuses the pods",
        "limits",
        ("Progressing", "False", "PodsRefused"),
        [agent("limits", HELLO)],
        limit_range,
        run("delete", "limitrange", "small"),
    ),
    Fault(
        "a webhook that is gone",
        "webhook",
        ("Progressing", "False", "WriteFailed"),
        [agent("webhook", HELLO)],
        gone_webhook,
        lambda space: space.kubectl.delete("validatingwebhookconfiguration", space.name),
    ),
]
"""Each is of a whole namespace, and of nothing beyond it."""

CLUSTER = [
    Fault(
        "a right of the operator that is missing",
        "right",
        ("Progressing", "False", "Forbidden"),
        [agent("right", HELLO)],
        without_right,
        with_right,
    ),
    Fault(
        "a node that takes no pods",
        "node",
        ("Ready", "False", "Unschedulable"),
        [agent("node", HELLO)],
        cordoned,
        uncordoned,
    ),
]
"""Each is felt by every Agent."""
