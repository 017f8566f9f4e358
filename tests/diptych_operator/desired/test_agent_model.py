"""An Agent's model, its ModelAPIs resolved."""

import json

import pytest
from support.agents import PLATFORM, agent, child, children, model_api, observed

from diptych_operator.desired.agent_model import (
    UnresolvedModel,
    model_document,
    unresolved_models,
    with_model,
)
from diptych_operator.desired.children import desired_children
from diptych_operator.desired.deployment import PodDefaults, ProxySettings, pod_template
from diptych_operator.resources.kinds import CONFIG_MAP, DEPLOYMENT, NETWORK_POLICY
from diptych_operator.status.condition import Problem
from diptych_operator.status.conditions import StatusInputs, agent_status

KEY = {"secretKeyRef": {"name": "models", "key": "api-key"}}
OPEN = {"proxy": {}, "allowedNamespaces": {"from": "All"}}
REF = {"apiRef": {"name": "house", "namespace": "platform"}}


def state(*apis, **fields):
    return observed(model_apis={api.namespaced_name: api for api in apis}, **fields)


def using(model, **spec):
    return agent(model=model, **spec)


def resolved(one, *apis):
    found = state(*apis)
    assert list(unresolved_models(one, found)) == []
    return model_document(with_model(one, found))


def test_a_model_api_of_the_namespace_is_asked_with_its_own_key():
    api = model_api(
        namespace="team",
        apiKey=KEY,
        headers=[{"name": "X-Team", "valueFrom": KEY}, {"name": "X", "value": "y"}],
        default="gpt",
        parameters={"temperature": "0.2", "maxTokens": 5},
        timeouts={"idle": "5s", "total": "9s"},
        prices={"gpt": {"input": "1", "output": "2"}},
        fallbacks=[{"name": "other", "endpoint": "https://other.example.com/v1", "apiKey": KEY}],
    )
    one = using(
        {
            "apiRef": {"name": "house"},
            "actionFormat": "native",
            "parameters": {"maxTokens": 7},
            "timeouts": {"idle": "1s"},
        }
    )
    file = {"file": "secrets/models/api-key"}
    assert resolved(one, api) == {
        "endpoint": "https://models.example.com/v1",
        "apiKey": file,
        "headers": [{"name": "X-Team", "valueFrom": file}, {"name": "X", "value": "y"}],
        "name": "gpt",
        "actionFormat": "native",
        "parameters": {"temperature": "0.2", "maxTokens": 7},
        "timeouts": {"idle": "1s", "total": "9s"},
        "prices": {"input": "1", "output": "2"},
        "fallbacks": [
            {"name": "other", "endpoint": "https://other.example.com/v1", "apiKey": file}
        ],
    }


def test_through_a_proxy_the_key_is_a_token_and_fallbacks_are_proxies_too():
    spare = model_api("spare", default="small", parameters={"temperature": "1"}, **OPEN)
    house = model_api(
        apiKey=KEY, models=["gpt-*"], fallbacks=[{"apiRef": {"name": "spare"}}], **OPEN
    )
    one = using({**REF, "name": "gpt-5"})
    document = resolved(one, house, spare)
    assert document == {
        "endpoint": "http://house-model.platform.svc:8000/v1",
        "apiKey": {"file": "tokens/modelapi.platform.house"},
        "name": "gpt-5",
        "fallbacks": [
            {
                "endpoint": "http://spare-model.platform.svc:8000/v1",
                "apiKey": {"file": "tokens/modelapi.platform.spare"},
                "name": "small",
                "parameters": {"temperature": "1"},
            }
        ],
    }
    pod = child(with_model(one, state(house, spare)), DEPLOYMENT, state(house, spare))
    sources = pod["spec"]["template"]["spec"]["volumes"][0]["projected"]["sources"]
    assert [
        one["serviceAccountToken"]["audience"] for one in sources if "serviceAccountToken" in one
    ] == [
        "diptych.dev/platform/modelapi/house",
        "diptych.dev/platform/modelapi/spare",
    ]
    assert not any("secret" in one for one in sources)  # the key stays where it is


def test_an_agents_own_fallbacks_take_the_place_of_the_apis():
    house = model_api(fallbacks=[{"apiRef": {"name": "spare"}}], default="m", **OPEN)
    own = {"name": "mine", "endpoint": "https://mine.example.com/v1", "apiKey": KEY}
    [found] = resolved(using({**REF, "fallbacks": [own]}), house)["fallbacks"]
    assert found == {**own, "apiKey": {"file": "secrets/models/api-key"}}


@pytest.mark.parametrize(
    ("model", "apis", "reason"),
    [
        (REF, [], "ModelAPINotFound"),
        ({**REF, "name": "m"}, [model_api(proxy={})], "ModelAPINotAllowed"),
        ({**REF, "name": "m"}, [model_api(models=["gpt-*"], **OPEN)], "ModelNotListed"),
        (REF, [model_api(**OPEN)], "ModelNotListed"),
    ],
)
def test_what_cannot_be_resolved_is_named_and_makes_no_pods(model, apis, reason):
    one = using(model)
    [problem] = unresolved_models(one, state(*apis))
    assert problem.reason == reason
    assert "platform/house" in problem.message
    with pytest.raises(UnresolvedModel) as caught:
        children(with_model(one, state(*apis)), state(*apis))
    assert caught.value.reason == reason


def test_the_models_that_may_be_named_are_in_the_advice():
    api = model_api(models=["gpt-*"], **OPEN)
    [found] = unresolved_models(using({**REF, "name": "m"}), state(api))
    problem = Problem(found.reason, found.message)
    inputs = StatusInputs(unresolved=[problem], blocker=problem)
    assert "gpt-*" in agent_status(agent(), inputs, "now")["advice"]


def test_a_fallback_that_cannot_be_resolved_is_left_out_and_named():
    missing, keyed = (
        {"apiRef": {"name": "gone"}},
        {"name": "k", "endpoint": "http://k", "apiKey": KEY},
    )
    house = model_api(default="m", fallbacks=[missing, keyed], **OPEN)
    problems = unresolved_models(using(REF), state(house))
    assert [one.reason for one in problems] == ["ModelAPINotFound", "FallbackHasKey"]
    assert "fallbacks" not in model_document(with_model(using(REF), state(house)))


def test_a_budget_of_money_needs_prices_of_either():
    one = using({**REF, "name": "m"}, budget={"perDay": {"cost": "1"}})
    [problem] = unresolved_models(one, state(model_api(**OPEN)))
    assert problem.reason == "PricesMissing"
    priced = model_api(prices={"m": {"input": "1", "output": "1"}}, **OPEN)
    assert unresolved_models(one, state(priced)) == []


@pytest.mark.parametrize(
    ("change", "rolls"),
    [
        ({"endpoint": "http://moved.blue:80/v1"}, False),
        ({"default": "other"}, False),
        ({"parameters": {"maxTokens": 9}, "timeouts": {"idle": "1s"}}, False),
        ({"prices": {"m": {"input": "1", "output": "1"}}}, False),
        ({"headers": [{"name": "A", "value": "b"}]}, False),
        ({"apiKey": {"secretKeyRef": {"name": "new", "key": "k"}}}, True),
    ],
)
def test_only_another_secret_replaces_the_pods(change, rolls):
    one = using({"apiRef": {"name": "house"}})
    proxied = PodDefaults("image:1", proxy=ProxySettings("http://proxy.infra:3128"))
    base = {"namespace": "team", "default": "m", "apiKey": KEY}
    before, after = (
        pod_template(with_model(one, state(api)), "config", proxied)
        for api in (model_api(**base), model_api(**base | change))
    )
    assert (before != after) == rolls


def test_the_manifest_in_the_pod_has_no_model_and_a_config_map_of_its_own_has():
    one = using({"apiRef": {"name": "house"}, "name": "m"})
    there = state(model_api(namespace="team"))
    found = children(with_model(one, there), there).to_apply
    maps = {o["metadata"]["name"]: o["data"] for o in found if o["kind"] == CONFIG_MAP.name}
    [name] = [name for name in maps if name.startswith("coordinator-model-")]
    model = json.loads(maps.pop(name)["model.json"])
    assert model == {"endpoint": "https://models.example.com/v1", "name": "m"}
    [manifest] = [json.loads(data["agent.yaml"]) for data in maps.values()]
    assert "model" not in manifest["spec"]


def test_the_endpoint_before_the_last_change_stays_open():
    one = using({"apiRef": {"name": "house"}, "name": "m"})
    api = model_api(namespace="team", endpoint="http://10.0.0.9:81/v1")
    there = state(api, former_urls=("http://10.0.0.8:80/v1",))
    policy = desired_children(with_model(one, there), there, PLATFORM).to_apply
    [egress] = [o["spec"]["egress"] for o in policy if o["kind"] == NETWORK_POLICY.name]
    blocks = [to["ipBlock"]["cidr"] for rule in egress for to in rule["to"] if "ipBlock" in to]
    assert {"10.0.0.8/32", "10.0.0.9/32"} <= set(blocks)
