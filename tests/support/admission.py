"""A real Kubernetes API with the chart's roles and admission policies in force.

Three releases: `team` has the policy for authors, `pods` that for pod templates, `loose` the same
at level baseline.
"""

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from support.agents import agent_object
from support.chart import rendered
from support.real_api import ROOT, ErrorResponse, RealApi, install, real_api

from diptych_operator.resources.kinds import AGENT, NAMESPACE, SERVICE_ACCOUNT, Object

SECONDS = 30.0
PLURALS = ("agents", "modelapis", "mcpservers", "agentpools")
_numbers = itertools.count()
KINDS = {
    "Role",
    "RoleBinding",
    "ServiceAccount",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
}
AUTHORS = ("watchNamespaces={team}", "admission.podSecurity=privileged")
ALONE = ("admission.authors=false", "admission.operator=false")
PODS = ("watchNamespaces={pods}", *ALONE, "fullnameOverride=other")
BASELINE = (
    "watchNamespaces={loose}",
    *ALONE,
    "admission.podSecurity=baseline",
    "fullnameOverride=third",
)


@contextlib.contextmanager
def served(program: Path, folder: Path) -> Iterator[RealApi]:
    """Serve a real API with these releases in it."""
    with real_api(program, folder) as api:
        for crd in (ROOT / "crds").glob("*.yaml"):
            install(api, yaml.safe_load(crd.read_text(encoding="utf-8")))
        for name in ("here", "team", "pods", "loose", "elsewhere"):
            api.create(NAMESPACE, {"metadata": {"name": name}})
            api.create(SERVICE_ACCOUNT, {"metadata": {"name": "agent", "namespace": name}})
        for settings in (AUTHORS, PODS, BASELINE):
            for content in rendered(*settings):
                if content["kind"] in KINDS:
                    add(api, content)
        _wait_until_in_force(api)
        yield api


def add(api: RealApi, content: Object) -> None:
    """Create an object of any kind; it is fine if it is there."""
    plural = content["kind"].lower() + "s"
    if plural.endswith("ys"):
        plural = plural.removesuffix("ys") + "ies"
    root = "apis" if "/" in content["apiVersion"] else "api"
    namespace = content["metadata"].get("namespace")
    inside = f"/namespaces/{namespace}" if namespace else ""
    try:
        api.ask("POST", f"/{root}/{content['apiVersion']}{inside}/{plural}", content)
    except ErrorResponse as error:
        if error.status != 409:
            raise


def allow(api: RealApi, user: str, namespace: str, *rules: dict[str, Any]) -> None:
    """Give a user a role of their own."""
    name = f"{user}-{next(_numbers)}"
    head = {"apiVersion": "rbac.authorization.k8s.io/v1"}
    metadata = {"name": name, "namespace": namespace}
    add(api, {**head, "kind": "Role", "metadata": metadata, "rules": list(rules)})
    ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}
    binding = {"kind": "RoleBinding", "metadata": metadata, "roleRef": ref, "subjects": [subject]}
    add(api, {**head, **binding})


def rule(group: str, resource: str, *verbs: str, names: tuple[str, ...] = ()) -> dict[str, Any]:
    found = {"apiGroups": [group], "resources": [resource], "verbs": list(verbs)}
    return {**found, "resourceNames": list(names)} if names else found


def manifest(name: str, namespace: str, **spec: Any) -> Object:
    content = agent_object(name, namespace, **spec)
    content["metadata"] = {"name": name, "namespace": namespace}
    return {"apiVersion": AGENT.api_version, "kind": AGENT.name, **content}


def of_kind(kind: str, namespace: str, **spec: Any) -> Object:
    """Return an object of a kind beside the Agent."""
    head = {"apiVersion": AGENT.api_version, "kind": kind}
    return {**head, "metadata": {"name": "a", "namespace": namespace}, "spec": spec}


def dry_create(api: RealApi, content: Object) -> None:
    """Ask whether the API would take an object of ours. Raises `ErrorResponse`."""
    kind = replace(AGENT, plural=content["kind"].lower() + "s")
    api.ask("POST", kind.path(content["metadata"]["namespace"]) + "?dryRun=All", content)


def refusal(api: RealApi, content: Object) -> str:
    """Return the sentence with which the API refuses an object; "" if it takes it."""
    try:
        dry_create(api, content)
    except ErrorResponse as error:
        said: str = yaml.safe_load(str(error))["message"]
        return said
    return ""


def _wait_until_in_force(api: RealApi) -> None:
    """Policies count some seconds after they are there."""
    stranger = api.impersonating("stranger")
    allow(api, "stranger", "team", *(rule("diptych.dev", plural, "create") for plural in PLURALS))
    host = {"spec": {"hostNetwork": True}}
    claims = (
        lambda: "ValidatingAdmissionPolicy" in refusal(stranger, manifest("a", "team")),
        *(
            lambda one=one: "ValidatingAdmissionPolicy" in refusal(stranger, one)
            for one in (
                of_kind("ModelAPI", "team", endpoint="http://m", proxy={}),
                of_kind("MCPServer", "team", source={"command": ["a"]}),
                of_kind("AgentPool", "team"),
            )
        ),
        lambda: refusal(api, manifest("a", "pods", podTemplate=host)),
        lambda: refusal(api, manifest("a", "loose", podTemplate=host)),
        *(
            lambda one=one: refusal(api, one)
            for namespace in ("pods", "loose")
            for one in (
                of_kind("AgentPool", namespace, podTemplate=host),
                of_kind(
                    "MCPServer", namespace, source={"command": ["a"]}, runtime={"podTemplate": host}
                ),
            )
        ),
    )
    for claim in claims:
        eventually(claim)


def eventually(claim: Callable[[], object]) -> None:
    until = time.monotonic() + SECONDS
    while not claim():
        assert time.monotonic() < until, "this does not come true"
        time.sleep(0.2)
