"""The chart's admission policies: who may write which Agent, and what the operator may touch."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from harness.kubectl import Kubectl
from harness.objects import agent, role, secret
from harness.release import PART, Release
from harness.space import Space

OURS = {"app.kubernetes.io/managed-by": "diptych-operator"}
HELLO = ["{}", "Hello!"]
AGENTS = {
    "apiGroups": ["diptych.dev"],
    "resources": ["agents", "agents/scale"],
    "verbs": ["get", "create", "update", "patch"],
}
PODS = {"apiGroups": [""], "resources": ["pods"], "verbs": ["create"]}
SECRET = {
    "apiGroups": [""],
    "resources": ["secrets"],
    "verbs": ["get"],
    "resourceNames": ["models"],
}
KEYED = {
    "name": "m",
    "endpoint": "http://model:8000/v1",
    "apiKey": {"secretKeyRef": {"name": "models", "key": "api-key"}},
}


def author(space: Space, name: str, *rules: Mapping[str, Any]) -> Kubectl:
    user = f"{name}@{space.name}"
    space.kubectl.apply(*role(name, user, *rules))
    return space.kubectl.impersonating(user)


def test_an_author_needs_the_rights_that_the_agent_uses(space: Space):
    space.kubectl.apply(secret("models", api_key="s3cret"))
    keyed = agent("keyed", HELLO, model=KEYED, replicas=0)
    without = author(space, "without", AGENTS, PODS)
    assert (
        f"spec.model.apiKey names Secret models, which you may not get in namespace {space.name}"
        in without.refusal(keyed)
    )
    author(space, "with", AGENTS, PODS, SECRET).apply(keyed)
    space.kubectl.wait_until_ready("keyed")
    elsewhere = {**KEYED, "endpoint": "http://mine:8000/v1"}
    assert "Secret models" in without.refusal(agent("keyed", HELLO, model=elsewhere))
    # This is no write of the spec.
    without("scale", "agents.diptych.dev/keyed", "--replicas=1", "--dry-run=server")

    podless = author(space, "podless", AGENTS)
    assert "you may not create pods in namespace" in podless.refusal(agent("hello", HELLO))

    editor = f"editor@{space.name}"  # with Kubernetes' own role
    space.kubectl("create", "rolebinding", "editor", "--clusterrole=edit", f"--user={editor}")
    edited = agent("edited", HELLO, model=KEYED, replicas=0)
    space.kubectl.impersonating(editor).apply(edited)
    space.kubectl.wait_until_ready("edited")


def test_a_pod_template_that_reaches_for_the_node_is_refused(space: Space):
    mount = {"name": "node", "mountPath": "/node"}
    template = {
        "spec": {
            "volumes": [{"name": "node", "hostPath": {"path": "/"}}],
            "containers": [{"name": "agent", "volumeMounts": [mount]}],
        }
    }
    node = agent("node", HELLO, podTemplate=template, replicas=0)
    said = space.kubectl.refusal(node)
    assert "does not fit Pod Security restricted: volume node must be a configMap, csi" in said
    template["spec"]["volumes"] = [{"name": "node", "emptyDir": {}}]
    space.kubectl.apply(node)


def test_the_operators_account_cannot_touch_what_is_not_its_own(diptych: Release, space: Space):
    space.kubectl.apply(agent("hello", HELLO, replicas=0))
    space.kubectl.wait_until_ready("hello")
    space.kubectl("create", "deployment", "theirs", "--image=none", "--replicas=0")
    space.kubectl("create", "configmap", "theirs", "--from-literal=password=s3cret")
    account = f"system:serviceaccount:{diptych.kubectl.namespace}:diptych"
    operator = space.kubectl.impersonating(account)
    scaled = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "theirs", "labels": OURS},
        "spec": {"replicas": 1},
    }
    with pytest.raises(AssertionError, match="changes its own only"):
        operator("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=json.dumps(scaled))
    for action in (
        ("delete", "--raw", f"/apis/apps/v1/namespaces/{space.name}/deployments/theirs"),
        ("delete", "--raw", f"/api/v1/namespaces/{space.name}/configmaps/theirs?dryRun=All"),
    ):
        with pytest.raises(AssertionError, match="its own only") as caught:
            operator(*action)
        assert "s3cret" not in str(caught.value)
    assert space.kubectl.get("deployment", "theirs")["spec"]["replicas"] == 0


def test_kubernetes_finds_no_fault_in_the_policies(diptych: Release):
    found = diptych.kubectl.list("validatingadmissionpolicies", PART)
    assert len(found) >= 3
    for policy in found:
        status = policy["status"]
        assert status["observedGeneration"] == policy["metadata"]["generation"]
        assert not status.get("typeChecking", {}).get("expressionWarnings"), policy["metadata"]
