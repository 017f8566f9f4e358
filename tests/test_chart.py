"""The Helm chart, as helm renders it: valid, restricted, and with no right too many.

Needs helm (see `tools/helm`); the checkers are run by uv. Tests skip what is missing, and say so in
capitals.
"""

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from support.agents import agent, child, observed
from support.chart import (
    CHART,
    KUBERNETES,
    POLICIES,
    ROOT,
    helm,
    rendered,
    run_helm,
    template_arguments,
)

from diptych.manifest.loader import check_files
from diptych_operator.desired.access import AccessSettings
from diptych_operator.desired.deployment import RolloutSettings
from diptych_operator.desired.expose import ExposeSettings, WaySettings
from diptych_operator.desired.metadata import MetadataSettings
from diptych_operator.desired.network_policy import DnsSettings, NetworkSettings, egress_rules
from diptych_operator.process.settings import read_settings
from diptych_operator.resources.kinds import DEPLOYMENT

CRDS = sorted(file.name for file in (ROOT / "crds").glob("*.yaml"))

ALL = (
    "ha.enabled=true",
    "redis.enabled=true",
    "metrics.serviceMonitor.enabled=true",
    "operator.extraEnv[0].name=HTTPS_PROXY",
    "operator.extraEnv[0].value=http://proxy:3128",
    "agents.expose.hosts={*.example.com}",
    "agents.expose.gateway.enabled=true",
    "agents.expose.ingress.enabled=true",
    "global.podLabels.team=agents",
    "global.podAnnotations.seen=yes",
    "global.nodeSelector.disk=ssd",
    "global.imagePullSecrets[0].name=registry",
    "global.priorityClassName=high",
    "global.tolerations[0].key=agents",
    "global.tolerations[0].operator=Exists",
)
VARIANTS = [(), ALL, ("watchNamespaces={team-a,team-b}", "rbac.aggregate=false")]

ALL_OF_IT = "list watch create patch delete"
REDIS = ("redis.enabled=true",)
RIGHTS = {
    "agents.diptych.dev": "list watch",
    "agentpools.diptych.dev": "list watch",
    "agents/status.diptych.dev": "patch",
    "modelapis.diptych.dev": "list watch",
    "modelapis/status.diptych.dev": "patch",
    "mcpservers.diptych.dev": "list watch",
    "mcpservers/status.diptych.dev": "patch",
    "agentpools/status.diptych.dev": "patch",
    "deployments.apps": ALL_OF_IT,
    "services": ALL_OF_IT,
    "serviceaccounts": ALL_OF_IT,
    "httproutes.gateway.networking.k8s.io": "list delete",
    "ingresses.networking.k8s.io": "list delete",
    "networkpolicies.networking.k8s.io": ALL_OF_IT,
    "poddisruptionbudgets.policy": ALL_OF_IT,
    "jobs.batch": ALL_OF_IT,
    "cronjobs.batch": ALL_OF_IT,
    "configmaps": ALL_OF_IT,
    "persistentvolumeclaims": ALL_OF_IT,
    "pods": "list watch",
    "events.events.k8s.io": "list create",
    "namespaces": "list watch",
    "leases.coordination.k8s.io": "create",
    "leases.coordination.k8s.io diptych-agents": "get update delete",
    "leases.coordination.k8s.io diptych": "get update",
    "serviceaccounts/token diptych": "create",
}
"""All that the operator may do."""


def test_the_chart_passes_helms_own_check():
    helm("lint", "--strict", str(CHART))


def test_all_objects_are_valid_kubernetes(tmp_path):
    all_of_them = [content for settings in VARIANTS for content in rendered(*settings)]
    objects = [content for content in all_of_them if content["kind"] != "ServiceMonitor"]
    file = tmp_path / "rendered.yaml"
    file.write_text(yaml.safe_dump_all(objects))
    _checker("kubernetes-validate==1.37.0", "--strict", "-k", KUBERNETES, str(file))


# ---- the CRD


def test_the_charts_crds_are_the_projects():
    """`python crds/generate.py` writes both."""
    for name in CRDS:
        assert (CHART / "files" / "crds" / name).read_text() == (ROOT / "crds" / name).read_text()


def test_the_crds_are_rendered_unchanged_and_kept_at_uninstall_unless_values_say_otherwise():
    crds = {crd["metadata"]["name"]: crd for crd in _of_kind("CustomResourceDefinition")}
    assert len(crds) == len(CRDS)
    for name in CRDS:
        projects = yaml.safe_load((ROOT / "crds" / name).read_text())
        crd = crds[projects["metadata"]["name"]]
        assert crd["spec"] == projects["spec"]
        assert crd["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    for crd in _of_kind("CustomResourceDefinition", "crds.keep=false"):
        assert "annotations" not in crd["metadata"]
    assert not _of_kind("CustomResourceDefinition", "crds.install=false")


# ---- rights


def test_the_operator_has_the_rights_that_are_listed_and_no_other():
    assert _rights() == RIGHTS


def test_the_operator_lists_tool_servers_of_other_groups_that_the_platform_names():
    kind = "rbac.toolServerKinds[0]"
    settings = (f"{kind}.apiGroup=mcp.x-k8s.io", f"{kind}.resources={{mcpservers}}")
    more = _rights(*settings).items() - RIGHTS.items()
    assert more == {("mcpservers.mcp.x-k8s.io", "list")}


def _rights(*settings: str) -> dict[str, str]:
    return {
        " ".join([f"{resource}.{group}".rstrip("."), *rule.get("resourceNames", ())]): " ".join(
            rule["verbs"]
        )
        for rule in _operator_rules(*settings)
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def test_no_role_holds_a_secret_or_a_wildcard_or_has_a_name_that_another_release_may_have():
    assert all(r["metadata"]["name"].startswith("here:") for r in _of_kind("ClusterRole"))
    for role in (*_of_kind("ClusterRole"), *_of_kind("Role")):
        for rule in role["rules"]:
            words = {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}
            assert not words & {"*", "secrets", "escalate", "bind", "impersonate", "pods/exec"}


def test_edit_may_get_tokens_to_ask_with_and_view_may_not():
    roles = {role["metadata"]["name"]: role for role in _of_kind("ClusterRole")}

    def resources(kind: str) -> set[str]:
        rules = roles[f"here:diptych:{kind}"]["rules"]
        return {resource for rule in rules for resource in rule["resources"]}

    assert "serviceaccounts/token" in resources("edit")
    assert "serviceaccounts/token" not in resources("view")


def test_a_namespaced_operator_has_no_right_anywhere_else():
    settings = ("watchNamespaces={team-a,team-b}", "rbac.aggregate=false")
    assert not _of_kind("ClusterRole", *settings)
    assert not _of_kind("ClusterRoleBinding", *settings)
    spaces = {role["metadata"]["namespace"] for role in _of_kind("Role", *settings)}
    assert spaces == {"team-a", "team-b", "here"}


# ---- admission policies (tried in tests/admission)


AUTHORS = ("authors", "authors-models", "authors-tools", "authors-pools")
PODS = ("pods", "pods-tools", "pods-pools")


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        pytest.param((), {*AUTHORS, *PODS, "operator"}, id="as it is"),
        pytest.param(("admission.enabled=false",), set(), id="switched off"),
        pytest.param(
            ("admission.authors=false", "admission.operator=false"), {*PODS}, id="one of them"
        ),
        pytest.param(("admission.podSecurity=privileged",), {*AUTHORS, "operator"}, id="any pod"),
    ],
)
def test_each_policy_is_switched_by_a_value(settings, names):
    kinds = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    for kind in kinds:
        found = {content["metadata"]["name"] for content in _of_kind(kind, *settings)}
        assert found == {f"diptych-{name}.here" for name in names}


def test_an_api_without_admission_policies_gets_none():
    arguments = [word for word in template_arguments() if word not in {"--api-versions", POLICIES}]
    assert "ValidatingAdmissionPolicy" not in helm(*arguments)


# ---- pods


def test_every_pod_passes_pod_security_restricted():
    for pod in (pod for settings in VARIANTS for pod in _pods(*settings)):
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        assert pod["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["spec"]["containers"]:
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["readOnlyRootFilesystem"] is True
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert {"requests", "limits"} <= container["resources"].keys()


def test_global_settings_reach_every_pod_and_those_of_the_agents():
    pods = [*_pods(*ALL), _agent_template(*ALL)]
    assert len(pods) == 4  # operator, Redis, test, agents
    for pod in pods:
        assert pod["metadata"]["labels"]["team"] == "agents"
        assert pod["metadata"]["annotations"]["seen"] == "yes"
        assert pod["spec"]["nodeSelector"] == {"disk": "ssd"}
        assert pod["spec"]["imagePullSecrets"] == [{"name": "registry"}]
        assert pod["spec"]["priorityClassName"] == "high"
        assert pod["spec"]["tolerations"] == [{"key": "agents", "operator": "Exists"}]


@pytest.mark.parametrize(
    ("settings", "image"),
    [
        pytest.param((), "diptych:0.1.0", id="the chart's own version"),
        pytest.param(
            (
                "image.tag=dev",
                "image.repository=r.example:5000/d",
                f"image.digest=sha256:{'a' * 64}",
            ),
            f"r.example:5000/d@sha256:{'a' * 64}",
            id="a digest, which wins",
        ),
    ],
)
def test_operator_and_agents_run_one_image(settings, image):
    container = _operator(*settings)["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == image
    assert _variables(container)["POD_IMAGE"] == image


def test_the_name_servers_are_the_operators_own_defaults_and_a_setting():
    def network(*settings):
        container = _operator(*settings)["spec"]["template"]["spec"]["containers"][0]
        environ = _variables(container) | {"POD_NAMESPACE": "here"}
        files = {"POD_TEMPLATE": "", "AGENTS": "", "ACCESS": ""}
        return read_settings([], environ | files).platform.network.dns

    assert network() == DnsSettings()
    others = ("dns.namespaces={openshift-dns}", "dns.podLabels=null", "dns.ports={5353}")
    assert network(*others, "dns.blocks=null") == DnsSettings(("openshift-dns",), {}, (), (5353,))


def platform(folder, *settings):
    """Read the chart's settings as the operator does."""
    container = _operator(*settings)["spec"]["template"]["spec"]["containers"][0]
    (config,) = [c for c in _of_kind("ConfigMap", *settings) if "agents.yaml" in c["data"]]
    environ = _variables(container) | {"POD_NAMESPACE": "here"}
    for variable, name in (
        ("POD_TEMPLATE", "pod-template.yaml"),
        ("AGENTS", "agents.yaml"),
        ("ACCESS", "access.yaml"),
    ):
        (folder / name).write_text(config["data"][name])
        environ[variable] = str(folder / name)
    return read_settings([], environ).platform


def test_the_operator_reads_what_the_platform_sets_for_agents_from_its_file(tmp_path):
    unset = platform(tmp_path)
    assert (unset.pods.template, unset.pods.locked) == ({}, ())
    assert (unset.pods.rollout, unset.metadata) == (
        RolloutSettings(at_once=10, edits_at_once=20),
        MetadataSettings(),
    )
    found = platform(
        tmp_path,
        "global.nodeSelector.disk=ssd",
        "agents.podTemplate.spec.runtimeClassName=gvisor",
        "agents.podTemplate.spec.nodeSelector.pool=agents",
        "agents.locked={spec.nodeSelector[pool],spec.runtimeClassName}",
        "agents.metadata.allowed={team}",
        "agents.serviceAccount.annotations.role=arn",
        "agents.service.labels.mesh=on",
        "agents.rollout.maxSurge=25%",
        "agents.rollout.atOnce=3",
        "agents.policy[0].match.tool=bank__*",
        "agents.policy[0].when=args.amount > 100",
        "agents.policy[0].do=ask",
    )
    assert found.expose == ExposeSettings()
    rule = {"match": {"tool": "bank__*"}, "when": "args.amount > 100", "do": "ask"}
    assert found.policy == (rule,)
    assert found.pods.template["spec"] == {
        "nodeSelector": {"disk": "ssd", "pool": "agents"},
        "runtimeClassName": "gvisor",
    }
    paths = [one.path for one in found.pods.locked][:2]
    assert paths == ["spec.nodeSelector[pool]", "spec.runtimeClassName"]
    assert found.pods.rollout == RolloutSettings("25%", 0, 3, 20)
    assert found.metadata.allowed == ("team",)
    assert found.metadata.service_accounts.annotations == {"role": "arn"}
    assert found.metadata.services.labels == {"mesh": "on"}


def test_the_operator_reads_who_may_do_what(tmp_path):
    found = platform(
        tmp_path,
        "access.issuers[0].url=https://login.example.com",
        "access.issuers[0].audience=agents",
        "access.grants[0].to[0].group=support",
        "access.grants[0].to[1].serviceAccount.name=web",
        "access.grants[0].to[1].serviceAccount.namespace=shop",
        "access.grants[0].may={ask,read}",
        "metrics.from[0].namespaceSelector.matchLabels.team=monitoring",
    )
    group = {"kind": "group", "name": "support"}
    account = {"kind": "serviceaccount", "name": "shop/web"}
    assert found.access == AccessSettings(
        ({"url": "https://login.example.com", "audience": "agents"},),
        ({"to": [group, account], "may": ["ask", "read"]},),
        ("here", "diptych"),
    )
    assert found.network.issuers == ("https://login.example.com",)
    (readers,) = found.network.metrics_from
    assert readers == {"namespaceSelector": {"matchLabels": {"team": "monitoring"}}}


def test_the_operator_reads_how_agents_may_be_exposed(tmp_path):
    found = platform(
        tmp_path,
        "agents.expose.hosts[0]=*.{namespace}.example.com",
        "agents.expose.gateway.enabled=true",
        "agents.expose.gateway.from[0].namespaceSelector.matchLabels.team=gateways",
        "agents.from[0].podSelector.matchLabels.app=front",
    )
    peer = {"namespaceSelector": {"matchLabels": {"team": "gateways"}}}
    gateway = WaySettings(True, (peer,))
    assert found.expose == ExposeSettings(("*.{namespace}.example.com",), gateway)
    assert found.network.ingress_from == ({"podSelector": {"matchLabels": {"app": "front"}}},)


@pytest.mark.parametrize(
    ("way", "resource"),
    [
        ("gateway", "httproutes.gateway.networking.k8s.io"),
        ("ingress", "ingresses.networking.k8s.io"),
    ],
)
def test_the_operator_may_make_routes_only_where_that_is_switched_on(way, resource):
    setting = f"agents.expose.{way}.enabled=true"
    new = _rights(setting).items() - _rights().items()
    assert new == {(resource, "list create patch delete")}
    assert _rights()[resource] == "list delete"  # of what was made while it was switched on
    (policy,) = [
        one
        for one in _of_kind("ValidatingAdmissionPolicy", setting)
        if "operator" in one["metadata"]["name"]
    ]
    assert resource.partition(".")[0] in str(policy["spec"]["matchConstraints"])


def test_a_change_of_what_agents_have_or_of_grants_restarts_the_operator():
    def mark(*settings):
        template = _operator(*settings)["spec"]["template"]
        return template["metadata"]["annotations"]["diptych.dev/settings"]

    grant = ("access.grants[0].to[0].user=ada", "access.grants[0].may={ask}")
    assert len({mark(), mark("agents.rollout.atOnce=3"), mark(*grant)}) == 3


def test_high_availability_is_two_replicas_and_a_budget():
    assert _operator("ha.enabled=true")["spec"]["replicas"] == 2
    assert _of_kind("PodDisruptionBudget", "ha.enabled=true")
    assert _operator()["spec"]["replicas"] == 1
    assert not _of_kind("PodDisruptionBudget")


def test_labels_of_selectors_are_those_of_pods():
    for settings in ((), ALL):
        pods = [pod["metadata"]["labels"].items() for pod in _pods(*settings)]
        for kind in ("Deployment", "PodDisruptionBudget"):
            for content in _of_kind(kind, *settings):
                chosen = content["spec"]["selector"]["matchLabels"].items()
                assert sum(chosen <= labels for labels in pods) == 1
        for service in _of_kind("Service", *settings):
            chosen = service["spec"]["selector"].items()
            assert sum(chosen <= labels for labels in pods) == 1


# ---- Redis


URL = {"urlFrom": {"secretKeyRef": {"name": "diptych-redis", "key": "url"}}}


def test_an_agent_reaches_the_bundled_redis_by_the_url_of_its_secret():
    (service,) = [s for s in _of_kind("Service", *REDIS) if _is_of_redis(s)]
    (deployment,) = [d for d in _of_kind("Deployment", *REDIS) if _is_of_redis(d)]
    (secret,) = _of_kind("Secret", *REDIS)
    pod = deployment["spec"]["template"]["spec"]
    url = urlsplit(secret["stringData"]["url"])
    assert url.hostname == f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc"
    (volume,) = [v for v in pod["volumes"] if v["name"] == "password"]
    assert volume["secret"]["secretName"] == secret["metadata"]["name"]
    assert url.password == secret["stringData"]["password"]
    assert len(url.password) == 40
    assert url.password not in str([c for c in rendered(*REDIS) if c["kind"] != "Secret"])
    one = agent(sessions={"redis": URL})
    ways_out = [rule["ports"] for rule in egress_rules(one, observed(), NetworkSettings())]
    assert url.port in {port["port"] for ports in ways_out for port in ports}


def test_the_bundled_redis_lets_in_agents_of_the_namespaces_that_are_named():
    def way_in(*settings):
        (policy,) = [p for p in _of_kind("NetworkPolicy", *REDIS, *settings) if _is_of_redis(p)]
        (rule,) = policy["spec"]["ingress"]
        assert policy["spec"]["egress"] == []
        labels = child(agent(), DEPLOYMENT)["spec"]["template"]["metadata"]["labels"]
        for peer in rule["from"]:
            assert peer["podSelector"]["matchLabels"].items() <= labels.items()
        return [peer.get("namespaceSelector") for peer in rule["from"]]

    def secrets(*settings):
        found = _of_kind("Secret", *REDIS, *settings)
        return {secret["metadata"]["namespace"]: secret["stringData"] for secret in found}

    assert way_in() == [None]
    assert secrets().keys() == {"here"}
    some = "redis.namespaces={team-a,team-b}"
    key = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["team-a", "team-b"]}
    assert way_in(some) == [None, {"matchExpressions": [key]}]
    made = secrets(some)
    assert made.keys() == {"here", "team-a", "team-b"}
    assert made["team-a"] == made["team-b"] == {"url": made["here"]["url"]}


def test_the_bundled_redis_may_have_a_password_of_ones_own(tmp_path):
    settings = (*REDIS, "redis.existingSecret=mine", "redis.namespaces={team-a}")
    assert not _of_kind("Secret", *settings)
    (deployment,) = [d for d in _of_kind("Deployment", *settings) if _is_of_redis(d)]
    volumes = deployment["spec"]["template"]["spec"]["volumes"]
    assert [v["secret"]["secretName"] for v in volumes if "secret" in v] == ["mine"]
    assert "redis://:PASSWORD@diptych-redis.here.svc:6379" in _notes(tmp_path, *settings)


@pytest.mark.parametrize(
    ("limit", "most"),
    [
        pytest.param("128Mi", "67108864", id="the chart's own"),
        pytest.param("1.5Gi", "805306368", id="a fraction of a binary unit"),
        pytest.param("null", None, id="no limit"),
    ],
)
def test_redis_may_fill_half_of_its_limit_and_drops_nothing(limit, most):
    arguments = _redis_arguments(f"redis.resources.limits.memory={limit}")
    assert arguments["--maxmemory-policy"] == "noeviction"
    assert arguments.get("--maxmemory") == most


# ---- values and texts


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        pytest.param("ha.enabeld=true", "enabeld", id="a misspelt value"),
        pytest.param("access.issuers[0].url=http://x", "access", id="an issuer without TLS"),
        pytest.param("access.grants[0].may={rule}", "access", id="an unknown right"),
        pytest.param("agents.locked={nodeSelector}", "locked", id="a path that is none"),
        pytest.param("agents.policy[0].do=ask", "policy", id="a rule without a match"),
    ],
)
def test_a_wrong_value_is_refused_by_name(setting, said):
    told = run_helm(*template_arguments(setting))
    assert told.returncode != 0
    assert said in told.stderr


def test_chart_and_distribution_have_one_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    chart = _chart()
    assert chart["appVersion"] == chart["version"] == project["version"]
    images = yaml.safe_load(chart["annotations"]["artifacthub.io/images"])
    assert images[0]["image"] == f"diptych:{project['version']}"


def test_artifact_hubs_annotations_are_lists_and_the_example_is_a_valid_agent(tmp_path):
    annotations = _chart()["annotations"]
    for name in ("crds", "crdsExamples", "images", "changes"):
        assert isinstance(yaml.safe_load(annotations[f"artifacthub.io/{name}"]), list)
    (example,) = yaml.safe_load(annotations["artifacthub.io/crdsExamples"])
    file = tmp_path / "agent.yaml"
    file.write_text(yaml.safe_dump(example))
    assert check_files([file]).problems == []


@pytest.mark.parametrize(
    ("settings", "namespace"),
    [
        pytest.param((), "here", id="where the release is"),
        pytest.param(("watchNamespaces={team-a,team-b}",), "team-a", id="where Agents are served"),
    ],
)
def test_the_notes_say_how_to_talk_to_an_agent(settings, namespace, tmp_path):
    said = _notes(tmp_path, *settings)
    assert f"diptych chat -n {namespace} hello\n" in said
    assert f"kubectl apply --namespace {namespace} " in said
    assert "Redis" not in said
    said = _notes(tmp_path / "redis", *settings, "redis.enabled=true")
    assert "urlFrom: {secretKeyRef: {name: diptych-redis, key: url}}" in said
    assert "for the Agents of here;" in said


def test_the_readme_names_every_value():
    readme = (CHART / "README.md").read_text()
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert [path for path in _leaves(values) if f"`{path}`" not in readme] == []


def _operator_rules(*settings: str) -> list[dict[str, Any]]:
    roles = [*_of_kind("ClusterRole", *settings), *_of_kind("Role", *settings)]
    own = [r for r in roles if not r["metadata"]["name"].endswith((":view", ":edit", "-test"))]
    return [rule for role in own for rule in role["rules"]]


def _operator(*settings: str) -> dict[str, Any]:
    deployments = _of_kind("Deployment", *settings)
    return next(d for d in deployments if not d["metadata"]["name"].endswith("-redis"))


def _is_of_redis(content: dict[str, Any]) -> bool:
    return bool(content["metadata"]["name"].endswith("-redis"))


def _redis_arguments(*settings: str) -> dict[str, str]:
    (deployment,) = [
        d for d in _of_kind("Deployment", "redis.enabled=true", *settings) if _is_of_redis(d)
    ]
    words = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    found: dict[str, list[str]] = {}
    for word in words:
        found.setdefault(word, []) if word.startswith("--") else [*found.values()][-1].append(word)
    return {name: " ".join(values) for name, values in found.items()}


def _notes(folder: Path, *settings: str) -> str:
    """Render what helm says after an install; without a cluster it shows objects only."""
    chart = folder / "chart"
    shutil.copytree(CHART, chart)
    notes = (chart / "templates" / "NOTES.txt").rename(chart / "files" / "NOTES.txt")
    shown = 'notes: {{ tpl (.Files.Get "files/%s") . | quote }}\n'
    (chart / "templates" / "notes.yaml").write_text(shown % notes.name)
    words = template_arguments(*settings, "--show-only=templates/notes.yaml")
    told = helm(*(str(chart) if word == str(CHART) else word for word in words))
    said: str = yaml.safe_load(told)["notes"]
    return said


def _agent_template(*settings: str) -> dict[str, Any]:
    (config,) = [c for c in _of_kind("ConfigMap", *settings) if "pod-template.yaml" in c["data"]]
    template: dict[str, Any] = yaml.safe_load(config["data"]["pod-template.yaml"])
    return template


def _variables(container: dict[str, Any]) -> dict[str, str]:
    return {variable["name"]: variable.get("value", "") for variable in container["env"]}


def _pods(*settings: str) -> list[dict[str, Any]]:
    templates = [d["spec"]["template"] for d in _of_kind("Deployment", *settings)]
    return [*templates, *_of_kind("Pod", *settings)]


def _of_kind(kind: str, *settings: str) -> list[dict[str, Any]]:
    return [found for found in rendered(*settings) if found["kind"] == kind]


def _leaves(values: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, dict) and value and name != "resources":
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def _chart() -> dict[str, Any]:
    chart: dict[str, Any] = yaml.safe_load((CHART / "Chart.yaml").read_text())
    return chart


def _checker(program: str, *arguments: str) -> None:
    """Run a checker from PyPI in an environment of its own, which uv makes and keeps."""
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if uv is None:
        pytest.skip(f"uv is not here: {program} DID NOT RUN")
    started = [uv, "tool", "run", "--quiet", program]
    there = subprocess.run([*started, "--help"], capture_output=True, text=True, check=False)
    if there.returncode != 0:
        pytest.skip(f"{program} cannot be had, AND DID NOT RUN: {there.stderr.strip()[-200:]}")
    told = subprocess.run([*started, *arguments], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stdout + told.stderr
