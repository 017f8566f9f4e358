"""The objects of MCPServers, compared with a golden file.

WRITE_GOLDEN=1 .venv/bin/pytest tests/diptych_operator/desired/test_mcp_server.py
"""

from dataclasses import replace
from pathlib import Path

import pytest
from support.agents import PLATFORM, mcp_server
from support.golden import assert_golden

from diptych_operator.desired.deployment import ProxySettings
from diptych_operator.desired.locked_fields import locked_field
from diptych_operator.desired.mcp_server import server_children
from diptych_operator.desired.network_policy import pods_of
from diptych_operator.resources.kinds import DEPLOYMENT, NETWORK_POLICY
from diptych_operator.resources.owner import ManifestError

GOLDEN = Path(__file__).parent / "golden_mcp_servers.yaml"
USERS = [pods_of("blue", {"app.kubernetes.io/instance": "coordinator"})]
SERVERS = (
    mcp_server(
        "python",
        source={
            "python": "def add(a: int, b: int) -> int:\n  return a + b\n",
            "packages": ["numpy"],
        },
        config={"env": [{"name": "REGION", "value": "eu"}], "port": 9000, "path": "/tools"},
    ),
    mcp_server(
        "image",
        source={"containerImage": {"ref": "registry.example.com/search:2"}},
        config={
            "arguments": ["--verbose"],
            "envFrom": [{"secretRef": {"name": "search"}}],
            "storage": [
                {"path": "/data", "source": {"configMap": {"name": "index"}}},
                {
                    "path": "/cache",
                    "permissions": "ReadWrite",
                    "source": {"emptyDir": {"sizeLimit": "1Gi"}},
                },
            ],
        },
        runtime={
            "replicas": 2,
            "resources": {"limits": {"memory": "1Gi"}},
            "security": {"runAsUser": 1000, "fsGroup": 2000, "readOnlyRootFilesystem": False},
            "podTemplate": {"spec": {"nodeSelector": {"pool": "tools"}}},
        },
    ),
)


def test_the_children_are_those_of_the_golden_file():
    objects = [child for one in SERVERS for child in server_children(one, USERS, PLATFORM)]
    assert_golden(objects, GOLDEN)


def of_kind(kind, *given):
    return next(child for child in server_children(*given) if child["kind"] == kind.name)


def test_a_command_is_bridged_and_a_remote_server_has_no_objects():
    deployment = of_kind(DEPLOYMENT, mcp_server(), (), PLATFORM)
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    assert container["args"][-2:] == ["--", "mcp-server-time"]
    remote = mcp_server(source={"remote": {"url": "https://tools.example.com/mcp"}})
    assert server_children(remote, (), PLATFORM) == ()


def test_the_platforms_proxy_variables_and_mounts_reach_our_image_below_the_servers_own():
    ca = {"name": "ca", "mountPath": "/etc/ca"}
    agent = {
        "name": "agent",
        "env": [{"name": "SSL_CERT_FILE", "value": "/etc/ca"}, {"name": "REGION", "value": "us"}],
        "volumeMounts": [ca],
        "resources": {"limits": {"memory": "4Gi", "cpu": "1"}},
    }
    template = {"spec": {"containers": [agent, {"name": "mesh"}], "volumes": [{"name": "ca"}]}}
    proxy = ProxySettings("http://proxy:3128")
    pods = replace(PLATFORM.pods, template=template, proxy=proxy)
    own = {"env": [{"name": "REGION", "value": "eu"}, {"name": "HTTP_PROXY", "value": ""}]}
    found = {}
    for source in ({"python": "def f(): ..."}, {"containerImage": {"ref": "search:2"}}):
        server = mcp_server(source=source, config=own)
        deployment = of_kind(DEPLOYMENT, server, (), replace(PLATFORM, pods=pods))
        [found[next(iter(source))]] = deployment["spec"]["template"]["spec"]["containers"]
    ours, image = found["python"], found["containerImage"]
    variables = {one["name"]: one["value"] for one in ours["env"]}
    assert variables.items() >= {
        ("SSL_CERT_FILE", "/etc/ca"),
        ("REGION", "eu"),
        ("HTTP_PROXY", ""),
        ("HTTPS_PROXY", "http://proxy:3128"),
    }
    assert ca in ours["volumeMounts"]
    assert ours["resources"]["limits"] == {"memory": "512Mi", "cpu": "1"}
    assert "SSL_CERT_FILE" not in {one["name"] for one in image["env"]}
    assert "HTTPS_PROXY" in {one["name"] for one in image["env"]}


def test_a_server_that_nobody_uses_is_reached_by_the_operator_alone():
    policy = of_kind(NETWORK_POLICY, mcp_server(), (), PLATFORM)
    [rule] = policy["spec"]["ingress"]
    assert [one["podSelector"]["matchLabels"] for one in rule["from"]] == [
        {"app.kubernetes.io/name": "diptych", "app.kubernetes.io/component": "operator"}
    ]
    without = replace(PLATFORM, network=replace(PLATFORM.network, operator_namespace=None))
    assert of_kind(NETWORK_POLICY, mcp_server(), (), without)["spec"]["ingress"] == []


def test_other_code_rolls_the_pods():
    first, second = (
        of_kind(DEPLOYMENT, mcp_server(source={"python": code}), (), PLATFORM)["spec"]["template"]
        for code in ("a = 1", "a = 2")
    )
    assert first != second


def test_the_platforms_template_holds_but_for_its_containers_which_are_agents():
    pods = replace(
        PLATFORM.pods,
        template={
            "metadata": {"labels": {"team": "platform"}},
            "spec": {"nodeSelector": {"pool": "a"}, "containers": [{"name": "agent"}]},
        },
        locked=(locked_field("spec.nodeSelector"),),
    )
    platform = replace(PLATFORM, pods=pods)
    template = of_kind(DEPLOYMENT, mcp_server(), (), platform)["spec"]["template"]
    assert template["metadata"]["labels"]["team"] == "platform"
    assert template["spec"]["nodeSelector"] == {"pool": "a"}
    assert [one["name"] for one in template["spec"]["containers"]] == ["server"]
    other = {"podTemplate": {"spec": {"nodeSelector": {"pool": "b"}}}}
    with pytest.raises(ManifestError, match=r"spec.runtime.podTemplate.spec.nodeSelector.* locked"):
        server_children(mcp_server(runtime=other), (), platform)


def test_the_pods_labels_stay_those_of_the_selector():
    labels = {"metadata": {"labels": {"app.kubernetes.io/instance": "other"}}}
    with pytest.raises(ManifestError, match="must not change app"):
        server_children(mcp_server(runtime={"podTemplate": labels}), (), PLATFORM)
