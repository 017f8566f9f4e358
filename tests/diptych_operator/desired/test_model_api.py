"""The objects of ModelAPIs, compared with a golden file.

WRITE_GOLDEN=1 .venv/bin/pytest tests/diptych_operator/desired/test_model_api.py
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.agents import PLATFORM, model_api, observed, service
from support.golden import assert_golden

from diptych.access.grants import Right, Subject, rights_of
from diptych.manifest.access import read_platform_access
from diptych.model_proxy.config import read_config
from diptych_operator.desired.access import AccessSettings, TokenIssuer
from diptych_operator.desired.model_api import Users, model_api_children
from diptych_operator.desired.network_policy import pods_of
from diptych_operator.resources.kinds import CONFIG_MAP, DEPLOYMENT, NETWORK_POLICY
from diptych_operator.resources.owner import ManifestError

GOLDEN = Path(__file__).parent / "golden_model_apis.yaml"
KEY = {"secretKeyRef": {"name": "models", "key": "api-key"}}
USERS = Users({"blue"}, [pods_of("blue", {"app.kubernetes.io/instance": "coordinator"})])
ISSUER = TokenIssuer("https://cluster.example", ({"kid": "1"},))
STATE = replace(observed(service("models", "blue"), service("redis", "platform")), issuer=ISSUER)
PROXIED = model_api(
    endpoint="http://models.blue.svc:8000/v1",
    apiKey=KEY,
    headers=[{"name": "X-Team", "valueFrom": {"secretKeyRef": {"name": "team", "key": "id"}}}],
    models=["gpt-*"],
    timeouts={"idle": "5s"},
    budget={"perDay": {"tokens": 5}},
    redis={"serviceRef": {"name": "redis", "port": 6379}},
    allowedNamespaces={"from": "All"},
    proxy={"replicas": 2},
)
HOSTED = model_api(
    "qwen",
    hosted={
        "engine": "ollama",
        "image": "ollama/ollama:0.9",
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
        "storage": {"size": "50Gi", "storageClassName": "fast"},
    },
)
del HOSTED.spec["endpoint"]
PLATFORM = replace(PLATFORM, access=AccessSettings(operator=("system", "diptych")))


def of(api, kind, state=STATE):
    found = model_api_children(api, state, USERS, PLATFORM)
    return [one for one in found if one["kind"] == kind.name]


def test_the_children_are_those_of_the_golden_file():
    objects = [
        child
        for one in (PROXIED, HOSTED)
        for child in model_api_children(one, STATE, USERS, PLATFORM)
    ]
    assert_golden(objects, GOLDEN)


def test_without_proxy_and_server_there_is_nothing_to_make():
    assert model_api_children(model_api(), STATE, USERS, PLATFORM) == ()


def test_the_proxy_reads_what_the_operator_writes():
    both = model_api("qwen", hosted=HOSTED.hosted, proxy={}, default="q", models=["q"])
    del both.spec["endpoint"]
    for api in (PROXIED, both):
        [config_map] = of(api, CONFIG_MAP)
        config = read_config(config_map["data"]["proxy.json"], Path("proxy.json"))
        assert config.name == f"platform/{api.name}"
        assert config.upstream.endpoint == api.address["endpoint"]
        access = read_platform_access(config.access)
        agent = Subject("serviceaccount", "blue/coordinator")
        assert Right.ASK in rights_of(agent, access.grants)
    assert config.spec.models == ("q",)


def test_another_endpoint_or_user_replaces_no_pod_and_another_secret_does():
    [before] = of(PROXIED, DEPLOYMENT)
    moved = replace(PROXIED, spec={**PROXIED.spec, "endpoint": "https://x", "models": ["y"]})
    assert of(moved, DEPLOYMENT) == [before]
    secret = {"secretKeyRef": {"name": "other", "key": "api-key"}}
    assert of(replace(PROXIED, spec={**PROXIED.spec, "apiKey": secret}), DEPLOYMENT) != [before]


def test_a_server_behind_a_proxy_is_reached_by_the_proxy_alone():
    both = replace(HOSTED, spec={**HOSTED.spec, "proxy": {}})
    server, proxy = of(both, NETWORK_POLICY)
    sources = [one for rule in server["spec"]["ingress"] for one in rule["from"]]
    labels = [one["podSelector"]["matchLabels"]["app.kubernetes.io/name"] for one in sources]
    assert labels == ["diptych", "diptych-model"]
    ports = {port["port"] for rule in proxy["spec"]["egress"] for port in rule["ports"]}
    assert 11434 in ports
    alone = [
        one for rule in of(HOSTED, NETWORK_POLICY)[0]["spec"]["ingress"] for one in rule["from"]
    ]
    assert USERS.pods[0] in alone


def test_a_former_endpoint_stays_open_to_the_proxy_until_the_next_change():
    moved = replace(PROXIED, spec={**PROXIED.spec, "endpoint": "http://10.0.0.9/v1"})
    former = replace(STATE, former_urls=("http://10.0.0.8/v1",))
    text = json.dumps(of(moved, NETWORK_POLICY, former))
    assert "10.0.0.8/32" in text
    assert "10.0.0.9/32" in text


def test_a_fallback_with_a_key_of_its_own_is_refused_where_keys_do_not_leave():
    fallback = {"name": "m", "endpoint": "https://x", "apiKey": KEY}
    with pytest.raises(ManifestError, match=r"spec.fallbacks\[0\]"):
        model_api_children(model_api(proxy={}, fallbacks=[fallback]), STATE, USERS, PLATFORM)
    assert model_api_children(model_api(fallbacks=[fallback]), STATE, USERS, PLATFORM) == ()
