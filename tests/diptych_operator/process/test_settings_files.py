"""The files that the chart writes for the operator."""

import json

import pytest

from diptych_operator.desired.access import AccessSettings
from diptych_operator.desired.call_policy import locked_by_policy
from diptych_operator.desired.deployment import ProxySettings, RolloutSettings
from diptych_operator.desired.metadata import MetadataSettings, ObjectMetadata
from diptych_operator.process.settings import read_settings
from diptych_operator.process.settings_files import AgentsFile, SettingsError, read_access

NEEDED = {"POD_IMAGE": "diptych:1", "POD_NAMESPACE": "system"}
RULE = {"match": {"tool": "*"}, "do": "deny"}
ISSUER = {"url": "https://login.example.com", "audience": "agents"}


def platform(folder, **content):
    file = folder / "agents.yaml"
    file.write_text(json.dumps(content))
    return read_settings([], {**NEEDED, "AGENTS": str(file)}).platform


def access(folder, **content):
    file = folder / "access.yaml"
    file.write_text(json.dumps(content))
    return read_access(str(file), ("system", "diptych"))


def test_without_files_the_platform_sets_nothing():
    found = read_settings([], NEEDED).platform
    assert found.metadata == MetadataSettings()
    assert (found.pods.template, found.pods.locked, found.policy) == ({}, (), ())
    assert found.pods.rollout == RolloutSettings(1, 0, 0, 0)
    assert found.access == AccessSettings()


def test_what_the_file_says_is_what_the_agents_get(tmp_path):
    found = platform(
        tmp_path,
        rollout={"maxSurge": "25%", "maxUnavailable": 1, "atOnce": 5, "editsAtOnce": 7},
        metadata={"allowed": ["team", "example.com/*"]},
        service={"annotations": {"a": "b"}},
        serviceAccount={"labels": {"c": "d"}},
        proxy={"url": "http://[fd00::1]:3128", "noProxy": ["fd00::/8"]},
        policy=[RULE],
    )
    assert found.pods.rollout == RolloutSettings("25%", 1, 5, 7)
    assert found.pods.proxy == ProxySettings("http://[fd00::1]:3128", ("fd00::/8",))
    assert found.network.shared_urls == ("http://[fd00::1]:3128",)
    services, accounts = ObjectMetadata({}, {"a": "b"}), ObjectMetadata({"c": "d"})
    assert found.metadata == MetadataSettings(("team", "example.com/*"), services, accounts)
    assert found.policy == (RULE,)
    assert found.pods.locked == locked_by_policy()


def test_the_pod_template_lies_over_that_of_all_pods(tmp_path):
    general, agents = tmp_path / "general.yaml", tmp_path / "agents.yaml"
    general.write_text("spec: {nodeSelector: {disk: ssd, pool: all}}")
    agents.write_text(
        "podTemplate: {spec: {nodeSelector: {pool: agents}}}\nlocked: [spec.nodeSelector]"
    )
    environ = {**NEEDED, "POD_TEMPLATE": str(general), "AGENTS": str(agents)}
    pods = read_settings([], environ).platform.pods
    assert pods.template == {"spec": {"nodeSelector": {"disk": "ssd", "pool": "agents"}}}
    assert [one.path for one in pods.locked] == ["spec.nodeSelector"]


def test_grants_get_the_form_of_the_access_file(tmp_path):
    to = [
        {"serviceAccount": {"name": "web", "namespace": "shop"}},
        {"agent": {"name": "*", "namespace": "legal"}},
        {"group": "support"},
    ]
    issuer = {**ISSUER, "ca": "-----BEGIN CERTIFICATE-----\n…"}
    found = access(tmp_path, issuers=[issuer], grants=[{"to": to, "may": ["ask", "manage"]}])
    grantees = [
        {"kind": "serviceaccount", "name": "shop/web"},
        {"kind": "agent", "name": "legal/*"},
        {"kind": "group", "name": "support"},
    ]
    grant = {"to": grantees, "may": ["ask", "manage"]}
    assert found == AccessSettings((issuer,), (grant,), ("system", "diptych"))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"podtemplate": {}}, "podtemplate: Extra inputs are not permitted"),
        ({"podTemplate": "x"}, "podTemplate: Input should be a valid dictionary"),
        ({"locked": ["nodeSelector"]}, "locked: 'nodeSelector' is no path"),
        ({"rollout": {"maxSurge": "x"}}, "rollout.maxSurge: must be a number or a percentage"),
        ({"rollout": {"maxSurge": 0, "maxUnavailable": "0%"}}, "must not both be 0"),
        ({"rollout": {"atOnce": -1}}, "rollout.atOnce: Input should be greater than or equal"),
        ({"proxy": {"url": "http://user:secret@proxy:1"}}, "proxy.url: must be like http://proxy"),
        ({"proxy": {"noProxy": "10.0.0.0/8"}}, "proxy.noProxy: Input should be a valid list"),
        ({"expose": {"ingress": {"enabled": True}}}, "expose: hosts must say which host names"),
        ({"policy": [RULE] * 65}, "policy: List should have at most 64 items"),
        ({"policy": [{**RULE, "expires": "24h1ms"}]}, "policy[0].expires: must be more than 0s"),
        ({"policy": [{**RULE, "expires": "1m 30s"}]}, "policy[0].expires: must be a duration"),
        ({"policy": [{"match": {}, "do": "deny"}]}, "policy[0].match: needs exactly one of tool,"),
        ({"policy": [RULE, {**RULE, "when": "argz.x"}]}, "policy[1].when: column 5: undeclared"),
    ],
)
def test_a_mistake_ends_the_process_at_the_start_with_a_line(content, said):
    with pytest.raises(SettingsError, match="--agents: ") as error:
        AgentsFile(content).pods("x", "Always", {}, "cluster.local")
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"issuers": [{**ISSUER, "url": "http://x"}]}, "issuers[0].url: must start with https://"),
        ({"issuers": [{"url": "https://x"}]}, "issuers[0].audience: Field required"),
        ({"issuers": [{**ISSUER, "ca": "x"}]}, "issuers[0].ca: must be certificates as PEM"),
        ({"grants": [{"to": [{"user": "a"}], "may": ["status"]}]}, "grants[0].may[0]: "),
        ({"grants": [{"to": [{"pod": "x"}], "may": ["ask"]}]}, "grants[0].to[0].pod: Extra"),
    ],
)
def test_a_mistake_of_the_access_file_is_a_line_too(tmp_path, content, said):
    with pytest.raises(SettingsError, match="--access: ") as error:
        access(tmp_path, **content)
    assert said in str(error.value)
