"""An Agent's podTemplate fits Pod Security, as the API server's own Pod Security judges the pod."""

import pytest
import yaml
from support.admission import eventually, manifest, of_kind, refusal
from support.agents import PLATFORM, agent
from support.chart import rendered
from support.real_api import ErrorResponse, RealApi

from diptych_operator.desired.deployment import pod_template
from diptych_operator.resources.kinds import AGENT, NAMESPACE, POD, SERVICE_ACCOUNT

SAFE = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
SIDE = {"name": "side", "image": "i", "securityContext": SAFE}


def side(**fields):
    """A container besides the agent's own."""
    return {"containers": [{**SIDE, **fields}]}


def own(**security):
    """The agent's own container."""
    return {"containers": [{"name": "agent", "securityContext": security}]}


def pod(**security):
    return {"securityContext": security}


PROBE = {"httpGet": {"port": 80, "host": "10.0.0.1"}}
BASELINE = {
    "hostNetwork": {"hostNetwork": True},
    "hostPID": {"hostPID": True},
    "hostIPC": {"hostIPC": True},
    "volume x": {"volumes": [{"name": "x", "hostPath": {"path": "/"}}]},
    "privileged": own(privileged=True, allowPrivilegeEscalation=True),
    "hostPort": side(ports=[{"containerPort": 1, "hostPort": 1}]),
    "hostProcess": {"hostNetwork": True, **pod(windowsOptions={"hostProcess": True})},
    "container agent: securityContext.windowsOptions": {
        "hostNetwork": True,
        **own(windowsOptions={"hostProcess": True}),
    },
    "procMount": {"hostUsers": False, **own(procMount="Unmasked")},
    "appArmorProfile": pod(appArmorProfile={"type": "Unconfined"}),
    "container agent: securityContext.appArmorProfile": own(appArmorProfile={"type": "Unconfined"}),
    "seccompProfile": pod(seccompProfile={"type": "Unconfined"}),
    "container agent: securityContext.seccompProfile": own(seccompProfile={"type": "Unconfined"}),
    "seLinuxOptions": pod(seLinuxOptions={"type": "spc_t"}),
    "seLinuxOptions must not name user": pod(seLinuxOptions={"user": "u"}),
    "container agent: securityContext.seLinuxOptions": own(seLinuxOptions={"role": "r"}),
    "sysctls must not have kernel.msgmax": pod(sysctls=[{"name": "kernel.msgmax", "value": "1"}]),
    "name no host": side(livenessProbe=PROBE),
    "probes and lifecycle": side(lifecycle={"postStart": PROBE}),
    "capabilities.add": side(securityContext={**SAFE, "capabilities": {"add": ["SYS_ADMIN"]}}),
}
"""What even `baseline` refuses, by what the refusal names."""

RESTRICTED = {
    "volume x": {"volumes": [{"name": "x", "nfs": {"server": "s", "path": "/"}}]},
    "container side: securityContext.capabilities.drop": side(
        securityContext={"allowPrivilegeEscalation": False}
    ),
    "capabilities.drop": own(capabilities={"drop": ["KILL"]}),
    "capabilities.add": own(capabilities={"add": ["CHOWN"]}),
    "container side: securityContext.allowPrivilegeEscalation": side(
        securityContext={"capabilities": {"drop": ["ALL"]}}
    ),
    "container first: securityContext.allowPrivilegeEscalation": {
        "initContainers": [{"name": "first", "image": "i"}]
    },
    "allowPrivilegeEscalation": own(allowPrivilegeEscalation=True),
    "container agent: securityContext.allowPrivilegeEscalation": own(allowPrivilegeEscalation=None),
    "runAsNonRoot": pod(runAsNonRoot=False),
    "securityContext.runAsNonRoot must": pod(runAsNonRoot=None),
    "container agent: securityContext.runAsNonRoot": own(runAsNonRoot=False),
    "runAsUser": pod(runAsUser=0),
    "container agent: securityContext.runAsUser": own(runAsUser=0),
}
FITTING = {
    "nothing": {},
    "a node and a toleration": {"nodeSelector": {"a": "b"}, "tolerations": [{"key": "a"}]},
    "a sidecar": side(),
    "an init container": {"initContainers": [{**SIDE, "name": "first"}]},
    "resources of the agent's own": {
        "containers": [{"name": "agent", "resources": {"limits": {"memory": "1Gi"}}}]
    },
    "a user": pod(runAsUser=1000, fsGroup=1000, runAsNonRoot=True),
    "a local seccomp profile": pod(
        seccompProfile={"type": "Localhost", "localhostProfile": "a.json"}
    ),
    "SELinux": pod(seLinuxOptions={"type": "container_t", "level": "s0:c1"}),
    "a safe sysctl": pod(sysctls=[{"name": "net.ipv4.tcp_syncookies", "value": "1"}]),
    "a low port": own(capabilities={"add": ["NET_BIND_SERVICE"], "drop": ["ALL"]}),
    "no host in its probes": side(livenessProbe={"httpGet": {"port": 80}}),
    "volumes": {
        "volumes": [
            {"name": "a", "emptyDir": {}},
            {"name": "b", "configMap": {"name": "b"}},
            {"name": "c", "persistentVolumeClaim": {"claimName": "c"}},
            {"name": "d", "projected": {"sources": []}},
            {"name": "e", "secret": {"secretName": "e"}},
            {"name": "f", "csi": {"driver": "f"}},
            {"name": "g", "downwardAPI": {}},
        ]
    },
}


@pytest.fixture(scope="module")
def judged(api: RealApi):
    """What the API server's Pod Security says to the pod of an Agent."""
    for level in ("restricted", "baseline"):
        labels = {"pod-security.kubernetes.io/enforce": level}
        api.create(NAMESPACE, {"metadata": {"name": level, "labels": labels}})
        for account in ("a", "default"):
            metadata = {"name": account, "namespace": level}
            api.create(SERVICE_ACCOUNT, {"metadata": metadata})

    def judge(level: str, spec: dict) -> str:
        one = agent("a", level, podTemplate={"spec": spec})
        made = pod_template(one, "config", PLATFORM.pods)
        content = {"apiVersion": "v1", "kind": "Pod", **made}
        content["metadata"] |= {"name": "a", "namespace": level}
        try:
            api.ask("POST", POD.path(level) + "?dryRun=All", content)
        except ErrorResponse as error:
            return str(yaml.safe_load(str(error))["message"])
        return ""

    return judge


@pytest.mark.parametrize("named", [*BASELINE, *RESTRICTED])
def test_what_pod_security_refuses_is_refused_in_a_sentence(api, judged, named):
    spec = (BASELINE | RESTRICTED)[named]
    assert "violates PodSecurity" in judged("restricted", spec)
    said = refusal(api, manifest("a", "pods", podTemplate={"spec": spec}))
    assert "spec.podTemplate.spec does not fit Pod Security restricted: " in said
    assert named in said
    assert said.endswith(
        "Whoever installs Diptych may allow more with the value admission.podSecurity."
    )


@pytest.mark.parametrize("which", FITTING)
def test_what_pod_security_takes_is_taken(api, judged, which):
    spec = FITTING[which]
    assert judged("restricted", spec) == ""
    assert refusal(api, manifest("a", "pods", podTemplate={"spec": spec})) == ""


def templates(spec):
    """Return a pool and a tool server with a template, whose own container is `server`."""
    renamed = yaml.safe_load(yaml.safe_dump(spec).replace("name: agent", "name: server"))
    runtime = {"podTemplate": {"spec": renamed}}
    yield of_kind("AgentPool", "pods", podTemplate={"spec": spec}), "podTemplate"
    server = of_kind("MCPServer", "pods", source={"command": ["a"]}, runtime=runtime)
    yield server, "runtime.podTemplate"


def test_templates_of_the_other_kinds_are_judged_alike(api):
    for named, spec in (BASELINE | RESTRICTED).items():
        for content, called in templates(spec):
            said = refusal(api, content)
            assert f"spec.{called}.spec does not fit Pod Security restricted: " in said
            renamed = named.replace("container agent", "container server")
            assert (named if content["kind"] == "AgentPool" else renamed) in said
    for which, spec in FITTING.items():
        for content, _ in templates(spec):
            assert refusal(api, content) == "", which


def test_all_that_does_not_fit_is_named_at_once(api):
    spec = {"hostPID": True, **side(securityContext={}), **BASELINE["volume x"]}
    said = refusal(api, manifest("a", "pods", podTemplate={"spec": spec}))
    for named in ("hostPID", "volume x", "container side: securityContext.capabilities.drop must"):
        assert named in said


@pytest.mark.parametrize(
    "annotation",
    [
        pytest.param("unconfined", id="none"),
        pytest.param("", id="not named"),
        pytest.param("runtime/default", id="the runtime's"),
    ],
)
def test_an_apparmor_annotation_may_not_switch_it_off(api, annotation):
    key = "container.apparmor.security.beta.kubernetes.io/agent"
    template = {"metadata": {"annotations": {"a": "b", key: annotation}}}
    said = refusal(api, manifest("a", "pods", podTemplate=template))
    assert ("annotations container.apparmor" in said) == (annotation == "unconfined")


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"containers": {"name": "agent"}}, id="containers that are a mapping"),
        pytest.param({"volumes": ["x"]}, id="a volume that is a text"),
        pytest.param({"initContainers": None}, id="init containers that are null"),
    ],
)
def test_a_template_of_another_shape_is_refused_in_a_sentence(api, spec):
    said = refusal(api, manifest("a", "pods", podTemplate={"spec": spec}))
    assert (
        "volumes and imagePullSecrets of spec.podTemplate.spec must be lists of mappings." in said
    )


def test_what_was_allowed_before_counts_when_something_else_changes(api):
    """Another image would run with what the template allows."""
    binding = (
        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/other-pods.here"
    )
    name = ("pods", "old")

    def act(action: str) -> None:
        change = {"spec": {"validationActions": [action]}}
        api.ask("PATCH", binding, change, "application/merge-patch+json")

    old = manifest(name[1], name[0], podTemplate={"spec": {"hostNetwork": True}})
    act("Warn")
    eventually(lambda: refusal(api, old) == "")
    api.create(AGENT, old)
    act("Deny")
    eventually(lambda: refusal(api, manifest("a", "pods", podTemplate=old["spec"]["podTemplate"])))
    api.merge(AGENT, name, {"metadata": {"labels": {"a": "b"}}})
    with pytest.raises(ErrorResponse, match="hostNetwork"):
        api.merge(AGENT, name, {"spec": {"container": {"image": "mine"}}})
    api.merge(AGENT, name, {"spec": {"podTemplate": None}})


@pytest.mark.parametrize("named", RESTRICTED)
def test_the_level_baseline_takes_more(api, judged, named):
    spec = RESTRICTED[named]
    assert judged("baseline", spec) == ""
    assert refusal(api, manifest("a", "loose", podTemplate={"spec": spec})) == ""


@pytest.mark.parametrize("named", BASELINE)
def test_the_level_baseline_is_a_level(api, judged, named):
    spec = BASELINE[named]
    assert "violates PodSecurity" in judged("baseline", spec)
    said = refusal(api, manifest("a", "loose", podTemplate={"spec": spec}))
    assert "does not fit Pod Security baseline: " in said


def test_the_level_privileged_is_no_policy():
    names = [
        content["metadata"]["name"]
        for content in rendered("admission.podSecurity=privileged")
        if content["kind"] == "ValidatingAdmissionPolicy"
    ]
    assert sorted(names) == [
        *("diptych-authors-models.here", "diptych-authors-pools.here"),
        *("diptych-authors-tools.here", "diptych-authors.here", "diptych-operator.here"),
    ]
