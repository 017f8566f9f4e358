"""The objects of a pool: a golden file, and what keeps its pods from rolling."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.agents import PLATFORM, agent, observed, service, settled
from support.golden import assert_golden
from support.pools import REDIS, pool

from diptych_operator.desired import pool as pool_module
from diptych_operator.desired.access import AccessSettings, TokenIssuer
from diptych_operator.desired.deployment import PodDefaults, ProxySettings
from diptych_operator.desired.locked_fields import locked_field
from diptych_operator.desired.metadata import MetadataSettings, ObjectMetadata
from diptych_operator.desired.pool import Member, PoolState, pool_children
from diptych_operator.desired.pool_documents import hosted
from diptych_operator.resources.kinds import CONFIG_MAP, DEPLOYMENT, NETWORK_POLICY
from diptych_operator.resources.owner import ManifestError

GOLDEN = Path(__file__).parent / "golden_pool.yaml"
ISSUER = TokenIssuer("https://cluster.example", ({"kid": "1"},))
KEY = {"secretKeyRef": {"name": "models", "key": "api-key"}}
MODEL = {"name": "gpt-5-mini", "endpoint": "https://models.example.com/v1", "apiKey": KEY}
SETTINGS = replace(PLATFORM, access=AccessSettings(operator=("system", "diptych")))
NOW = 1_800_000_000


def member(name, **spec):
    one = hosted(agent(name, hosting={"pool": "shared"}, **spec), pool())
    return Member(one, replace(observed(service("redis")), issuer=ISSUER))


def state(*members, live=None, **fields):
    """Return the state after `live` children were applied, and all pods are of them."""
    found = PoolState(members=members, issuer=ISSUER, now=NOW)
    if live:
        objects = live.to_apply
        config_maps = [one for one in objects if one["kind"] == CONFIG_MAP.name]
        deployment = settled(next(one for one in objects if one["kind"] == DEPLOYMENT.name))
        policy = next(one for one in objects if one["kind"] == NETWORK_POLICY.name)
        found = replace(
            found, config_maps=config_maps, deployment=deployment, network_policy=policy
        )
    return replace(found, **fields)


def children(given, one=None, platform=SETTINGS):
    return pool_children(one or pool(), given, platform)


def template(found):
    [one] = [one for one in found.to_apply if one["kind"] == DEPLOYMENT.name]
    return one["spec"]["template"]


def policy(found):
    [one] = [one for one in found.to_apply if one["kind"] == NETWORK_POLICY.name]
    return one["spec"]


def test_the_platforms_annotations_are_on_its_service_account():
    role = ObjectMetadata(annotations={"iam.example.com/role": "agents"})
    platform = replace(SETTINGS, metadata=MetadataSettings(service_accounts=role))
    account = children(state(), platform=platform).to_apply[0]
    assert account["metadata"]["annotations"].items() >= role.annotations.items()


def test_the_children_are_those_of_the_golden_file():
    a = member("a", model=MODEL, agents=[{"name": "b"}])
    b = member("b", allowedNamespaces={"from": "All"})
    first = children(state(a, b))
    assert_golden(list(children(state(a, b, live=first)).to_apply), GOLDEN)


def test_numbers_are_kept_until_no_pod_knows_the_agent_and_then_given_again():
    first = children(state(member("a"), member("b")))
    assert first.numbers == {"a": 0, "b": 1}
    second = children(state(member("b"), member("c"), live=first, served=frozenset("ab")))
    assert second.numbers == {"a": 0, "b": 1, "c": 2}
    assert second.documents.keys() == {"b", "c"}
    third = children(state(member("b"), member("c"), member("d"), live=second))
    assert third.numbers == {"b": 1, "c": 2, "d": 0}


def test_a_pool_that_is_full_keeps_those_that_it_has():
    first = children(state(member("m"), member("z")), pool(maxAgents=2))
    found = children(state(member("a"), member("m"), member("z"), live=first), pool(maxAgents=2))
    assert found.documents.keys() == {"m", "z"}
    assert found.refused.keys() == {"a"}
    assert "full (2 Agents)" in found.refused["a"]


def test_a_config_map_takes_as_much_as_the_api_lets_it(monkeypatch):
    monkeypatch.setattr(pool_module, "CONFIG_MAPS", 1)
    monkeypatch.setattr(pool_module, "MAX_CONFIG_MAP_BYTES", 3000)
    first = children(state(member("z")))
    found = children(state(member("a", instructions="x" * 2000), member("z"), live=first))
    assert found.documents.keys() == {"z"}
    assert "no room" in found.refused["a"]


def test_a_key_is_mounted_first_and_stays_so_until_the_pods_roll():
    first = children(state(member("a"), member("b")))
    with_key = member("a", model=MODEL)
    second = children(state(with_key, member("b"), live=first))
    assert template(second) != template(first)
    assert second.documents == first.documents
    rolling = state(with_key, member("b"), live=second)
    counts = {**rolling.deployment["status"], "updatedReplicas": 1}
    rolling = replace(rolling, deployment={**rolling.deployment, "status": counts})
    assert children(rolling).documents == first.documents
    third = children(state(with_key, member("b"), live=second))
    assert third.documents["a"].content["manifest"]["spec"]["model"]["apiKey"] == KEY
    assert third.documents["b"] == first.documents["b"]
    gone = children(state(member("b"), live=third))
    assert template(gone) == template(third)
    other = member("c", model={**MODEL, "apiKey": {"secretKeyRef": {"name": "x", "key": "k"}}})
    rolled = children(state(other, live=gone))
    assert "models" not in json.dumps(template(rolled))


def test_a_generation_grows_with_each_change_even_over_a_deletion():
    first = children(state(member("a")))
    assert first.documents["a"].content["generation"] == NOW
    assert children(state(member("a"), live=first, now=NOW + 9)).documents == first.documents
    edited = member("a", instructions="New.")
    second = children(state(edited, live=first, now=NOW - 9))
    assert second.documents["a"].content["generation"] == NOW + 1
    again = children(state(member("a"), now=NOW + 60))
    assert again.documents["a"].content["generation"] == NOW + 60


@pytest.mark.parametrize(
    "invalid", [{"agents": [{"as": "x", "url": "http://[::1"}]}, {"replicas": 2}]
)
def test_of_an_agent_that_cannot_be_served_the_last_good_document_stays(invalid):
    good = member("a", model={**MODEL, "endpoint": "https://old.example:8443"})
    first = children(state(good, member("b")))
    first = children(state(good, member("b"), live=first))
    found = children(state(member("a", **invalid), member("b"), member("c", **invalid), live=first))
    assert found.documents == first.documents
    assert {"protocol": "TCP", "port": 8443} in ports(policy(found)["egress"])


def test_one_that_leaves_is_served_as_it_was():
    first = children(state(member("a"), member("b")))
    leaving = (member("b", instructions="New."),)
    found = children(replace(state(member("a"), live=first), leaving=leaving))
    assert found.documents == first.documents
    assert found.numbers == first.numbers


def test_former_egress_stays_open_until_no_pod_needs_it():
    first = children(state(member("a", model={**MODEL, "endpoint": "https://old.example:8443"})))
    changed = member("a")
    assert {"protocol": "TCP", "port": 8443} in ports(policy(first)["egress"])
    busy = children(state(changed, live=first, is_settled=False))
    assert {"protocol": "TCP", "port": 8443} in ports(policy(busy)["egress"])
    done = children(state(changed, live=first))
    assert {"protocol": "TCP", "port": 8443} not in ports(policy(done)["egress"])


def ports(rules):
    return [port for rule in rules for port in rule.get("ports", ())]


def test_extra_ingress_opens_the_agents_port_alone():
    peer = {"ipBlock": {"cidr": "10.1.0.0/16"}}
    rules = [
        {"from": [peer]},
        {"from": [{"ipBlock": {"cidr": "10.2.0.0/16"}}], "ports": [{"port": 8000}]},
        {"from": [{"ipBlock": {"cidr": "10.3.0.0/16"}}], "ports": [{"port": 9999}]},
    ]
    found = policy(children(state(member("a", network={"extraIngress": rules}))))["ingress"]
    at = [{"protocol": "TCP", "port": 10000}]
    assert {"from": [peer], "ports": at} in found
    assert {"from": [{"ipBlock": {"cidr": "10.2.0.0/16"}}], "ports": at} in found
    assert "10.3.0.0" not in json.dumps(found)


def test_the_proxy_is_told_of_namespaces_and_not_of_agents():
    proxy = ProxySettings("http://proxy.infra:3128")
    platform = replace(SETTINGS, pods=PodDefaults("diptych:1", proxy=proxy))
    one = member("a", agents=[{"name": "b"}])
    [container] = template(children(state(one), platform=platform))["spec"]["containers"]
    variables = {variable["name"]: variable["value"] for variable in container["env"]}
    assert variables["NO_PROXY"].split(",")[-1] == ".team"


def test_the_pools_template_lies_over_the_platforms_and_may_not_change_what_is_locked():
    platform = replace(
        SETTINGS,
        pods=PodDefaults(
            "diptych:1",
            template={"spec": {"priorityClassName": "agents"}},
            locked=(locked_field("spec.priorityClassName"),),
        ),
    )
    resources = {"limits": {"memory": "2Gi"}}
    given = {"spec": {"nodeSelector": {"pool": "agents"}}}
    found = children(state(), pool(podTemplate=given, resources=resources), platform)
    spec = template(found)["spec"]
    assert spec["nodeSelector"] == {"pool": "agents"}
    assert spec["priorityClassName"] == "agents"
    assert spec["containers"][0]["resources"] == resources
    mistakes = [
        {"spec": {"priorityClassName": "mine"}},
        {"metadata": {"labels": {"app.kubernetes.io/instance": "x"}}},
    ]
    for mistake in mistakes:
        with pytest.raises(ManifestError):
            children(state(), pool(podTemplate=mistake), platform)


def test_the_pools_redis_is_the_default_of_its_agents():
    own = {"urlFrom": {"secretKeyRef": {"name": "r", "key": "url"}}}
    assert hosted(agent("a"), pool()).redis == REDIS
    assert hosted(agent("a", sessions={"redis": own}), pool()).redis == own
    assert hosted(agent("a", sessions={"queue": {"mode": "steer"}}), pool()).spec["sessions"] == {
        "queue": {"mode": "steer"},
        "redis": REDIS,
    }
