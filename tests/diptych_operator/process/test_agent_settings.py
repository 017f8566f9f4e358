"""What the platform sets for all Agents, as the chart writes it."""

import json

import pytest

from diptych_operator.desired.deployment import ProxySettings, RolloutSettings
from diptych_operator.desired.metadata import MetadataSettings, ObjectMetadata
from diptych_operator.process.settings import SettingsError, read_settings

NEEDED = {"POD_IMAGE": "diptych:1", "POD_NAMESPACE": "system"}


def read(folder, **content):
    file = folder / "agents.yaml"
    file.write_text(json.dumps(content))
    return read_settings([], {**NEEDED, "AGENTS": str(file)}).platform


def test_without_a_file_the_platform_sets_nothing():
    platform = read_settings([], NEEDED).platform
    assert platform.metadata == MetadataSettings()
    assert (platform.pods.template, platform.pods.locked) == ({}, ())
    assert platform.pods.rollout == RolloutSettings(1, 0, 0)


def test_the_pod_template_lies_over_that_of_all_pods(tmp_path):
    general = tmp_path / "general.yaml"
    general.write_text("spec: {nodeSelector: {disk: ssd, pool: all}}")
    agents = tmp_path / "agents.yaml"
    agents.write_text(
        "podTemplate: {spec: {nodeSelector: {pool: agents}}}\nlocked: [spec.nodeSelector]"
    )
    environ = {**NEEDED, "POD_TEMPLATE": str(general), "AGENTS": str(agents)}
    pods = read_settings([], environ).platform.pods
    assert pods.template == {"spec": {"nodeSelector": {"disk": "ssd", "pool": "agents"}}}
    assert [one.path for one in pods.locked] == ["spec.nodeSelector"]


def test_the_proxy_is_read_for_pods_and_for_their_network_policy(tmp_path):
    platform = read(tmp_path, proxy={"url": "http://[fd00::1]:3128", "noProxy": ["fd00::/8"]})
    assert platform.pods.proxy == ProxySettings("http://[fd00::1]:3128", ("fd00::/8",))
    assert platform.network.shared_urls == ("http://[fd00::1]:3128",)


def test_rollout_and_metadata_are_read(tmp_path):
    platform = read(
        tmp_path,
        rollout={"maxSurge": "25%", "maxUnavailable": 1, "atOnce": 5},
        metadata={"allowed": ["team", "example.com/*"]},
        service={"annotations": {"a": "b"}},
        serviceAccount={"labels": {"c": "d"}},
    )
    assert platform.pods.rollout == RolloutSettings("25%", 1, 5)
    assert platform.metadata == MetadataSettings(
        ("team", "example.com/*"),
        ObjectMetadata(annotations={"a": "b"}),
        ObjectMetadata(labels={"c": "d"}),
    )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"podTemplate": []}, None),
        ({"podtemplate": {}}, "unknown fields: podtemplate"),
        ({"podTemplate": "x"}, "podTemplate must be a mapping"),
        ({"podTemplate": {"spec": []}}, "must be a mapping"),
        ({"podTemplate": {"spec": {"containers": [{}]}}}, "needs a name"),
        ({"locked": "spec"}, "locked must be a list"),
        ({"locked": ["nodeSelector"]}, "locked: 'nodeSelector' is no path"),
        ({"metadata": {"allowed": "team"}}, "metadata.allowed must be a list"),
        ({"service": {"labels": {"a": 1}}}, "service has labels and annotations, which are"),
        ({"serviceAccount": {"annotations": []}}, None),
        ({"rollout": {"maxSurge": "x"}}, "rollout.maxSurge must be a number or a percentage"),
        ({"rollout": {"maxSurge": 0, "maxUnavailable": "0%"}}, "must not both be 0"),
        ({"proxy": {"url": ""}}, None),
        ({"proxy": {"url": "http://user:secret@proxy:1"}}, "proxy.url must be like http://proxy"),
        ({"proxy": {"url": "socks5://proxy:1080"}}, "proxy.url must be like http://proxy.infra"),
        ({"proxy": {"noProxy": "10.0.0.0/8"}}, "proxy.noProxy must be a list"),
        ({"rollout": {"atOnce": -1}}, "rollout.atOnce must be a number of Agents"),
        ({"rollout": {"atOnce": True}}, "rollout.atOnce must be a number of Agents"),
    ],
)
def test_a_mistake_ends_the_process_at_the_start_with_a_line(tmp_path, content, said):
    if said is None:
        read(tmp_path, **content)
        return
    with pytest.raises(SettingsError) as error:
        read(tmp_path, **content)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
