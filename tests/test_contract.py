"""What the operator writes, the pod reads: the resolved manifest, its files, its environment."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.agents import agent, child, observed, service
from support.doubles import catalog
from yarl import URL

from diptych.a2a.peer import MAX_JITTER, REFRESH_INTERVAL
from diptych.access.grants import Subject, rights_of
from diptych.core.errors import ConfigError
from diptych.core.messages import ToolCall
from diptych.manifest import REFERENCES as POD_REFERENCES
from diptych.manifest import AgentSpec
from diptych.manifest.access import read_platform_access
from diptych.manifest.agent import PLATFORM_POLICY
from diptych.manifest.environment import process_settings
from diptych.manifest.loader import LocalOptions, load_agents
from diptych.manifest.providers import PROVIDERS, PUBLIC
from diptych.manifest.sessions import RedisService
from diptych.manifest.settings import AgentConfig, ProcessSettings
from diptych.manifest.tools import ServiceRef
from diptych.policy.rules import RunCaller
from diptych.runs.scheduler import HAND_OVER_SECONDS
from diptych.serve import tool_server
from diptych.serve.hosted_agent import HostedAgent
from diptych.serve.http_server import CLOSE_SECONDS, FIRST_REQUEST_SECONDS
from diptych_operator.controller import readiness_poll
from diptych_operator.desired import resolved_manifest as resolved
from diptych_operator.desired.access import (
    ACCESS_KEY,
    AccessSettings,
    TokenIssuer,
    access_text,
)
from diptych_operator.desired.resolved_manifest import FILE, FOLDER, manifest_text
from diptych_operator.process.settings_files import AgentsFile
from diptych_operator.resources.agent import REDIS_PORT
from diptych_operator.resources.kinds import CONFIG_MAP, DEPLOYMENT, PORT, Object
from diptych_operator.status import mcp_server

MOUNTED_KEYS = {
    "secret": {"models": {"api-key": "sk-1"}, "tools": {".token": "t-1", "crm": "c-1"}},
    "configMap": {"prompts": {"coordinator": "You are careful."}},
}


def test_the_operator_knows_a_tool_servers_pod_that_starts() -> None:
    assert mcp_server._STARTING == tool_server.STARTING


def mount(
    spec: dict[str, Any], folder: Path, *, keys: Any = MOUNTED_KEYS, env: Any = (), **status: Any
) -> Path:
    """Play the kubelet: lay the files of the pod's volume into a folder; give the manifest's."""
    one = replace(agent(**spec), status=status)
    observed_state = observed(agent("researcher"), service("wiki"))
    text = child(one, CONFIG_MAP, observed_state)["data"][FILE]
    volume = _pod(one, observed_state)["volumes"][0]["projected"]["sources"]
    written = {FILE: text.replace(FOLDER, str(folder)), ACCESS_KEY: access(one)}
    for source in volume:
        kind, reference = next(iter(source.items()))
        if kind == "serviceAccountToken":
            items = [{"key": "token", "path": reference["path"]}]
            held = {"token": f"for {reference['audience']}"}
        else:
            items = reference["items"]
            held = {k: v for k, v in written.items() if kind == "configMap" and k in _keys(items)}
            assert held or reference["optional"]
            held = held or keys.get(kind, {}).get(reference["name"], {})
        for item in items:
            if item["key"] in held:
                path = folder / item["path"]
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(held[item["key"]], encoding="utf-8")
    return folder / FILE


def _keys(items: Any) -> set[str]:
    return {item["key"] for item in items}


ISSUER = TokenIssuer("https://cluster.example", ({"kty": "EC", "kid": "1"},))
LOGIN = {
    "url": "https://login.example.com",
    "audience": "agents",
    "userClaim": "email",
    "ca": "PEM",
}
SETTINGS = AccessSettings(
    issuers=(LOGIN,),
    grants=({"to": [{"kind": "group", "name": "support"}], "may": ["ask", "read"]},),
    operator=("system", "diptych"),
)


def access(one: Any) -> str:
    return access_text(one, {("team", "asker"): (), ("legal", "lawyer"): ()}, ISSUER, SETTINGS)


def _pod(one: Any, observed_state: Any) -> Object:
    deployment: Object = child(one, DEPLOYMENT, observed_state)
    return deployment["spec"]["template"]["spec"]


def read(file: Path, **environ: str) -> AgentConfig:
    """Do what `diptych serve` does in the pod."""
    loaded = load_agents([file], LocalOptions(environ))
    return loaded.resolve(["http://127.0.0.1:8000"])[0]


def test_both_sides_call_the_annotation_the_same():
    assert resolved.REFERENCES == POD_REFERENCES
    assert resolved.PLATFORM_POLICY == PLATFORM_POLICY


RULES = (
    {"match": {"tool": "pay"}, "when": "args.amount > 100", "do": "deny", "reason": "Too much."},
    {"match": {"agent": "*"}, "do": "ask", "expires": "5m", "mode": "dryRun"},
)


def with_rules(folder: Path, rules: Any, **spec: Any) -> Path:
    file = folder / FILE
    content = resolved.resolved_manifest(agent(**spec), observed(), rules)
    file.write_text(manifest_text(content).replace(FOLDER, str(folder)))
    return file


def test_the_pod_puts_the_platforms_rules_beside_its_own(tmp_path: Path):
    assert AgentsFile({"policy": list(RULES)}).policy == RULES
    own = [{"match": {"tool": "*"}, "do": "allow"}]
    policy = read(with_rules(tmp_path, RULES, policy=own)).policy
    for amount, outcome in ((99, "allow"), (101, "deny")):
        call = ToolCall("call_1_1", "pay", {"amount": amount})
        verdict = policy.verdict(call, catalog("pay"), RunCaller("run-1"))
        assert verdict.outcome == outcome
    assert verdict.reason == "Too much."


def test_a_pod_that_does_not_understand_the_platforms_rules_does_not_start(tmp_path: Path):
    rules = ({"match": {"tool": "*"}, "do": "think"},)
    with pytest.raises(ConfigError, match=r"diptych.dev/policy is not what this version"):
        read(with_rules(tmp_path, rules))


def test_services_and_agents_have_become_urls(tmp_path):
    file = mount(
        {
            "tools": [
                {"name": "wiki", "serviceRef": {"name": "wiki"}},
                {"name": "other", "serviceRef": {"name": "wiki", "port": 80, "path": "/x"}},
                {"name": "files", "command": ["files-server"]},
            ],
            "agents": [
                {"name": "researcher"},
                {"name": "late", "as": "later", "shareContext": False},
                {"as": "outside", "url": "https://agents.example.com"},
            ],
        },
        tmp_path,
    )
    config = read(file)
    assert [tool.url for tool in config.tools[:2]] == [
        "http://wiki.team.svc:8000/mcp",
        "http://wiki.team.svc:80/x",
    ]
    assert [(peer.name, peer.url, peer.share_context) for peer in config.agents] == [
        ("researcher", "http://researcher.team:8000", True),
        ("later", "http://late.team:8000", False),
        ("outside", "https://agents.example.com", False),
    ]


def test_the_pod_learns_who_may_call_from_what_the_operator_writes(tmp_path):
    config = read(mount({}, tmp_path))
    assert config.access.platform is not None
    platform = read_platform_access(config.access.platform() or "")
    cluster, login = platform.issuers
    assert (cluster.url, cluster.audience) == (ISSUER.url, "diptych.dev/team/coordinator")
    assert (cluster.jwks, cluster.is_cluster) == (ISSUER.keys, True)
    assert (login.url, login.audience, login.user_claim) == (
        "https://login.example.com",
        "agents",
        "email",
    )
    assert login.ca is not None
    assert login.ca() == "PEM"

    def rights(kind: Any, name: str, *groups: str) -> set[str]:
        subject = Subject(kind, name, frozenset(groups))
        return {right.value for right in rights_of(subject, platform.grants)}

    assert rights("agent", "legal/lawyer") == rights("agent", "team/asker") == {"ask"}
    assert rights("serviceaccount", "team/coordinator") == {"ask"}
    assert rights("serviceaccount", "system/diptych") == {"status"}
    assert rights("serviceaccount", "legal/lawyer") == rights("agent", "legal/other") == set()
    assert rights("user", "ada", "support") == {"ask", "read"}


def test_the_pod_has_a_token_for_each_peer_that_it_knows_by_name(tmp_path):
    peers = [{"name": "researcher"}, {"name": "lawyer", "namespace": "legal", "as": "counsel"}]
    outside = {"as": "outside", "url": "https://agents.example.com"}
    config = read(mount({"agents": [*peers, outside]}, tmp_path))
    tokens = {peer.name: peer.token and peer.token() for peer in config.agents}
    assert tokens == {
        "researcher": "for diptych.dev/team/researcher",
        "counsel": "for diptych.dev/legal/lawyer",
        "outside": None,
    }
    renewed = tmp_path / "tokens/legal.lawyer"
    renewed.write_text("a renewed one")
    assert [peer.token() for peer in config.agents if peer.token][1] == "a renewed one"


@pytest.mark.parametrize("mode", ["open", "required"])
def test_an_agent_is_open_only_if_its_manifest_says_so(tmp_path, mode):
    spec = {"access": {"mode": mode}}
    assert read(mount(spec, tmp_path)).access.mode == mode
    args = _pod(agent(**spec), observed())["containers"][0]["args"]
    assert ("--open" in args) is (mode == "open")


REFERRING = {
    "instructionsFrom": {"configMapKeyRef": {"name": "prompts", "key": "coordinator"}},
    "model": {
        "name": "m",
        "endpoint": "https://models.example.com/v1",
        "apiKey": {"secretKeyRef": {"name": "models", "key": "api-key"}},
    },
    "tools": [
        {
            "name": "wiki",
            "serviceRef": {"name": "wiki"},
            "headers": [
                {
                    "name": "Authorization",
                    "valueFrom": {"secretKeyRef": {"name": "tools", "key": ".token"}},
                }
            ],
        },
        {
            "name": "crm",
            "url": "https://crm.example.com/mcp",
            "auth": {
                "clientId": "agent",
                "clientSecret": {"secretKeyRef": {"name": "tools", "key": "crm"}},
                "issuer": "https://login.example.com",
            },
        },
    ],
}


def test_keys_are_read_from_their_files_whenever_they_come_and_when_they_are_rotated(tmp_path):
    config = read(mount(REFERRING, tmp_path, keys={}))
    assert config.model is not None
    assert config.model.api_key is not None
    assert config.model.api_key() is None
    mount(REFERRING, tmp_path)
    assert config.model.api_key() == "sk-1"
    assert config.tools[0].headers["Authorization"]() == "t-1"
    assert config.tools[1].auth is not None
    assert config.tools[1].auth.client_secret is not None
    assert config.tools[1].auth.client_secret() == "c-1"
    definition = config.definition
    assert definition.current_instructions == "You are careful."
    (tmp_path / "secrets/models/api-key").write_text("sk-22\n")
    assert config.model.api_key() == "sk-22"
    (tmp_path / "configmaps/prompts/coordinator").write_text("You are bold now.")
    assert definition.current_instructions == "You are bold now."


def kept_in(**redis: Any) -> dict[str, Any]:
    return {"sessions": {"redis": redis, "retention": "2h"}, "replicas": 2}


@pytest.mark.parametrize(
    ("ref", "url"),
    [
        pytest.param({"name": "redis"}, "redis://redis.team:6379", id="of its namespace"),
        pytest.param(
            {"name": "redis", "namespace": "stores", "port": 7000},
            "redis://redis.stores:7000",
            id="of another namespace",
        ),
    ],
)
def test_the_pod_knows_the_service_of_its_redis(tmp_path, ref, url):
    store = read(mount(kept_in(serviceRef=ref), tmp_path)).store
    assert store is not None
    assert (store.url(), store.retention) == (url, 7200)
    assert store.prefix == "diptych:team:coordinator:agent:coordinator-1"


def test_the_url_of_a_redis_is_read_from_where_it_is_mounted_whenever_it_comes(tmp_path):
    spec = kept_in(urlFrom={"secretKeyRef": {"name": "redis", "key": "url"}})
    config = read(mount(spec, tmp_path, keys={}))
    assert config.store is not None
    assert config.store.url() is None
    assert set(config.mounted_keys) == {"url of Secret redis"}
    mount(spec, tmp_path, keys={"secret": {"redis": {"url": "redis://:sesame@r:6379"}}})
    assert config.store.url() == "redis://:sesame@r:6379"


async def test_ready_names_the_keys_that_are_missing_until_they_come(tmp_path):
    config = read(mount(REFERRING, tmp_path, keys={}))
    async with ClientSession() as http:
        pod = HostedAgent(config, http)
        names = {key.name for key in pod.readiness().unavailable if key.kind == "key"}
        assert names == {
            "coordinator of ConfigMap prompts",
            "api-key of Secret models",
            ".token of Secret tools",
            "crm of Secret tools",
        }
        mount(REFERRING, tmp_path)
        assert [key for key in pod.readiness().unavailable if key.kind == "key"] == []
        await pod.runs.close()


def test_variables_come_from_the_process_that_kubernetes_has_given_them_to(tmp_path):
    env = [
        {"name": "DEBUG_MOCK_RESPONSES", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        {"name": "REGION", "value": "$(ZONE)-1"},
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    ]
    file = mount({"container": {"env": env, "envFrom": [{"secretRef": {"name": "x"}}]}}, tmp_path)
    config = read(file, DEBUG_MOCK_RESPONSES='["{}", "Hi"]', REGION="eu-1", POD_IP="10.0.0.1")
    assert config.mock_responses == '["{}", "Hi"]'


def test_what_the_pod_does_not_understand_ends_it_with_a_sentence(tmp_path):
    file = tmp_path / FILE
    file.write_text(manifest_text({"apiVersion": "diptych.dev/v2", "kind": "Agent"}))
    with pytest.raises(ConfigError, match="apiVersion: must be"):
        read(file)


def test_a_pod_has_time_to_end_its_runs_to_hand_over_and_to_serve_its_last_readers():
    pod = _pod(agent(), observed())
    container = pod["containers"][0]
    env = {variable["name"]: variable.get("value") for variable in container["env"]}
    before_sigterm = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    for_runs = process_settings(env).shutdown_grace
    assert for_runs > ProcessSettings().shutdown_grace, "the operator gives more than the default"
    ending = FIRST_REQUEST_SECONDS + for_runs + HAND_OVER_SECONDS + CLOSE_SECONDS
    needed = before_sigterm + ending
    assert needed < pod["terminationGracePeriodSeconds"]


def test_an_agent_without_pods_is_named_by_its_callers_within_20_seconds():
    last_look = REFRESH_INTERVAL * MAX_JITTER  # the pod's, at the card
    assert last_look + readiness_poll.PERIOD + readiness_poll.TICK <= 20


def test_both_sides_have_the_same_defaults():
    one = agent(tools=[{"name": "wiki", "serviceRef": {"name": "wiki"}}])
    tool, redis = ServiceRef(name="wiki"), RedisService(name="redis")
    assert one.tool_service({"name": "wiki"}).port == tool.port
    assert tool.port == PORT
    assert redis.port == REDIS_PORT
    assert one.replicas == AgentSpec.model_fields["replicas"].default
    url = resolved.resolved_manifest(one, observed(service("wiki")))["spec"]["tools"][0]["url"]
    assert url.endswith(tool.path)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@settings(max_examples=25, deadline=None)
@given(TEXTS)
def test_every_text_arrives_as_it_was_written(tmp_path_factory, instructions):
    assume(FOLDER not in instructions)  # `mount` puts the test's own folder in its place
    folder = tmp_path_factory.mktemp("etc")
    file = mount({"instructions": instructions}, folder)
    assert read(file).definition.instructions == instructions


def test_a_pod_may_reach_the_provider_that_its_model_names() -> None:
    """The NetworkPolicy opens the port at which the pod asks a provider without an endpoint."""
    one = agent(model={"provider": "groq", "name": "m"})
    asked = {URL(PROVIDERS[name].endpoint).port for name in PUBLIC}
    assert {URL(url).port for url in one.urls} == asked
