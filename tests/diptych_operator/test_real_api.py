"""What only a real Kubernetes API can tell: that it does what the operator counts on."""

import asyncio
import contextlib
import itertools
import re
import time
from dataclasses import dataclass

import pytest
from support.agents import agent_object
from support.pod_templates import GOOD, MISTAKES
from support.real_api import ErrorResponse
from support.reconciler_harness import Harness

from diptych_operator.controller.metrics import Metrics
from diptych_operator.kubernetes.client import KubernetesClient
from diptych_operator.kubernetes.errors import ApiError
from diptych_operator.resources.kinds import (
    AGENT,
    CONFIG_MAP,
    DEPLOYMENT,
    MCP_SERVER,
    MODEL_API,
    POD,
    SERVICE,
    Kind,
    ObjectKey,
)

WEBHOOKS = Kind(
    "admissionregistration.k8s.io",
    "v1",
    "validatingwebhookconfigurations",
    "ValidatingWebhookConfiguration",
    is_namespaced=False,
)


_numbers = itertools.count()


@dataclass
class RealHarness(Harness):
    """A harness for one Agent of its own name."""

    name: tuple[str, str] = ("", "")

    async def reconcile(self):
        return await super().reconcile(self.name)

    @property
    def spec(self):
        return {kind: self.api.get(kind, self.name)["spec"] for kind in (SERVICE, DEPLOYMENT)}

    @property
    def accepted(self):
        conditions = self.api.get(AGENT, self.name)["status"]["conditions"]
        return next((c["status"], c["reason"]) for c in conditions if c["type"] == "Accepted")

    @property
    def config(self):
        [content] = [
            content
            for content in self.api.all(CONFIG_MAP, "team")
            if re.fullmatch(f"{self.name[1]}-[0-9a-f]{{10}}", content["metadata"]["name"])
        ]
        return content


@pytest.fixture
async def harness(kube_api, request):
    name = f"a{next(_numbers)}-{request.node.originalname.replace('_', '-')[:40]}".rstrip("-")
    content = agent_object(name)
    content["metadata"] = {"name": name, "namespace": "team"}
    kube_api.create(AGENT, content)
    async with KubernetesClient(kube_api.connection, Metrics().count_request) as client:
        found = RealHarness(kube_api, client, name=("team", name))
        await found.reconcile()
        yield found


async def test_an_agent_is_served_and_then_nothing_is_written(harness):
    assert harness.accepted == ("True", "Accepted")
    before = harness.api.get(DEPLOYMENT, harness.name)["metadata"]["resourceVersion"]
    again = RealHarness(harness.api, harness.client, name=harness.name)
    writes = []
    ask = harness.client._request

    async def note(method, *given, **kwargs):
        writes.append(method)
        return await ask(method, *given, **kwargs)

    harness.client._request = note
    await again.reconcile()
    assert set(writes) == {"GET"}
    assert harness.api.get(DEPLOYMENT, harness.name)["metadata"]["resourceVersion"] == before


async def test_an_mcp_server_is_served_and_its_status_follows_what_its_pod_says(harness):
    name = "team", f"s{next(_numbers)}"
    key = ObjectKey(MCP_SERVER, *name)
    spec = {
        "source": {"python": "def add(a: int) -> int: ..."},
        "config": {"storage": [{"path": "/data", "source": {"emptyDir": {"sizeLimit": "1Gi"}}}]},
        "runtime": {"replicas": 2, "security": {"runAsUser": 1000}},
    }
    metadata = {"name": name[1], "namespace": "team"}
    harness.api.create(MCP_SERVER, {"metadata": metadata, "spec": spec})
    digest = f"sha256:{'a' * 64}"
    info = {"name": "tools", "version": ""}
    good = {"tools": [{"name": "add", "digest": digest}], "serverInfo": info}
    for answer, verified in ((good, "True"), ({"reason": "line 1"}, "False"), (good, "True")):
        await harness.observe()
        harness.cache.put(POD, _pod_of(name))
        harness.cache.answers[key] = {"pod": answer}
        await harness.servers.reconcile(name)
        status = harness.api.get(MCP_SERVER, name)["status"]
        found = {c["type"]: c["status"] for c in status["conditions"]}
        assert (found["Accepted"], found["Verified"]) == ("True", verified)
        assert ("tools" in status, "serverInfo" in status) == (verified == "True",) * 2


def _pod_of(server):
    labels = {"app.kubernetes.io/name": "diptych-tools", "app.kubernetes.io/instance": server[1]}
    return {"metadata": {"name": "pod", "namespace": server[0], "labels": labels}}


async def test_a_model_api_and_its_user_are_served_and_then_nothing_is_written(harness):
    name = "team", f"m{next(_numbers)}"
    key = {"secretKeyRef": {"name": "models", "key": "api-key"}}
    redis = {"serviceRef": {"name": "redis"}}
    storage = {"size": "1Gi"}
    spec = {
        "hosted": {"engine": "ollama", "image": "ollama/ollama:1", "storage": storage},
        "apiKey": key,
        "default": "qwen",
        "budget": {"perDay": {"tokens": 5}},
        "redis": redis,
        "proxy": {"replicas": 2},
        "allowedNamespaces": {"from": "All"},
    }
    metadata = {"name": name[1], "namespace": "team"}
    harness.api.create(MODEL_API, {"metadata": metadata, "spec": spec})
    model = {"apiRef": {"name": name[1]}}
    harness.api.merge(
        AGENT, harness.name, {"spec": {"model": {**model, "endpoint": None, "name": None}}}
    )
    for _ in range(3):
        await harness.reconcile()
        await harness.apis.reconcile(name)
    status = harness.api.get(MODEL_API, name)["status"]
    conditions = {c["type"]: (c["status"], c["reason"]) for c in status["conditions"]}
    assert conditions["Accepted"] == ("True", "Accepted")
    assert conditions["Ready"] == ("False", "RollingOut")
    assert (status["agents"], harness.accepted) == (1, ("True", "Accepted"))
    again = RealHarness(harness.api, harness.client, name=harness.name)
    writes = []
    ask = harness.client._request

    async def note(method, *given, **kwargs):
        writes.append(method)
        return await ask(method, *given, **kwargs)

    harness.client._request = note
    await again.reconcile()
    await again.apis.reconcile(name)
    assert set(writes) == {"GET"}


async def test_a_port_under_the_same_name_is_repaired(harness):
    before = harness.spec
    ports = [{"name": "http", "port": 9999, "targetPort": 9999}]
    harness.api.merge(SERVICE, harness.name, {"spec": {"ports": ports}})
    await harness.reconcile()
    assert harness.spec == before
    assert harness.accepted == ("True", "Accepted")


async def test_a_manifest_at_fault_is_reported_and_changes_nothing(harness):
    before = harness.spec
    container = {"name": "agent", "ports": [{"name": "http", "containerPort": 9000}]}
    template = {"spec": {"containers": [container]}}
    harness.api.merge(AGENT, harness.name, {"spec": {"podTemplate": template}})
    assert await harness.reconcile() == 30
    assert harness.accepted == ("False", "Refused")
    assert harness.spec == before


@pytest.mark.parametrize("case", MISTAKES, ids=lambda case: case.name)
async def test_a_malformed_pod_template_is_reported_in_the_apis_words(harness, case):
    before = harness.spec
    harness.api.merge(AGENT, harness.name, {"spec": {"podTemplate": {"spec": case.spec}}})
    assert await harness.reconcile() == 30
    assert harness.accepted == ("False", "Refused")
    conditions = harness.api.get(AGENT, harness.name)["status"]["conditions"]
    assert case.words in next(c["message"] for c in conditions if c["type"] == "Accepted")
    assert harness.spec == before


@pytest.mark.parametrize("spec", GOOD)
async def test_a_pod_template_that_check_finds_good_is_applied(harness, spec):
    harness.api.merge(AGENT, harness.name, {"spec": {"podTemplate": {"spec": spec}}})
    await harness.reconcile()
    assert harness.accepted[1] in {"Accepted", "Refused"}  # refused by a rule, not for its shape
    conditions = harness.api.get(AGENT, harness.name)["status"]["conditions"]
    message = next(c["message"] for c in conditions if c["type"] == "Accepted")
    assert "failed to" not in message


async def test_a_webhook_that_is_gone_is_an_obstacle_and_not_the_manifests_fault(harness):
    name = {"metadata": {"name": harness.name[1]}}
    hook = {
        "name": "gone.example.com",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Fail",
        "clientConfig": {"service": {"namespace": "team", "name": "gone", "port": 443}},
        "namespaceSelector": {},
        "rules": [
            {
                "apiGroups": ["apps"],
                "apiVersions": ["v1"],
                "operations": ["UPDATE"],
                "resources": ["deployments"],
            }
        ],
    }
    harness.api.create(WEBHOOKS, {**name, "webhooks": [hook]})
    harness.api.merge(AGENT, harness.name, {"spec": {"instructions": "New."}})
    try:
        await until_said(harness, ("False", "WriteFailed"))
    finally:
        harness.api.delete(WEBHOOKS, ("", harness.name[1]))
    await until_said(harness, ("True", "RollingOut"))


async def until_said(harness, expected):
    """Reconcile until Progressing says so: the API takes up a webhook after a moment."""
    said = None
    for _ in range(100):
        with contextlib.suppress(ApiError):
            await harness.reconcile()
        conditions = harness.api.get(AGENT, harness.name)["status"]["conditions"]
        said = next((c["status"], c["reason"]) for c in conditions if c["type"] == "Progressing")
        if said == expected:
            return
        change = {"spec": {"instructions": f"New at {time.monotonic()}."}}
        harness.api.merge(AGENT, harness.name, change)
        await asyncio.sleep(0.1)
    raise AssertionError(f"Progressing is {said}")


async def test_another_selector_is_repaired(harness):
    before = harness.spec
    content = harness.api.get(DEPLOYMENT, harness.name)
    harness.api.delete(DEPLOYMENT, harness.name)
    kept = ("name", "namespace", "labels", "ownerReferences")
    content["metadata"] = {key: content["metadata"][key] for key in kept}
    content["spec"]["selector"] = {"matchLabels": {"x": "y"}}
    content["spec"]["template"]["metadata"]["labels"]["x"] = "y"
    harness.api.create(DEPLOYMENT, content)
    await harness.reconcile()
    assert harness.spec == before


async def test_an_agent_that_breaks_the_rules_is_refused_in_words(kube_api):
    content = agent_object("refused", replicas=2)
    content["metadata"] = {"name": "refused", "namespace": "team"}
    with pytest.raises(ErrorResponse) as caught:
        kube_api.create(AGENT, content)
    assert caught.value.status == 422
    assert "sessions.redis" in str(caught.value)


KEYS = [{"name": f"key-{n}", "secretKeyRef": {"name": "keys", "key": str(n)}} for n in range(16)]


def granting(name, grants, keys):
    access = {"grants": grants} | ({"keys": keys} if keys else {})
    return agent_object(name, access=access) | {"metadata": {"name": name, "namespace": "team"}}


@pytest.mark.parametrize("keys", [KEYS, []], ids=["another key", "no key"])
async def test_a_grant_to_a_key_that_there_is_not_is_refused(kube_api, keys):
    grants = [{"to": [{"group": "all"}, {"key": "key-16"}], "may": ["ask"]}]
    with pytest.raises(ErrorResponse) as caught:
        kube_api.create(AGENT, granting("granting", grants, keys))
    assert caught.value.status == 422
    assert "spec.access: Invalid value" in str(caught.value)
    assert "grants name a key that is no name of keys" in str(caught.value)


async def test_as_many_grants_as_there_may_be_are_taken(kube_api):
    to = [{"key": "key-15"}, *({"group": f"group-{n}"} for n in range(63))]
    grants = [{"to": to, "may": ["ask"]}] * 16
    kube_api.create(AGENT, granting("many-grants", grants, KEYS))
