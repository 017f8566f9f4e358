"""`diptych check --online` as a person types it, against servers of a thread beside it."""

import json
from base64 import b64encode
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from support.upstream_habits import error, refusal, said, whole
from support.upstream_server import Answer, upstream_in_thread

Type = Callable[..., Any]
CANARY = "sk-canary-0123456789"
PING = {"id": "c", "type": "function", "function": {"name": "ping", "arguments": "{}"}}


def good(body: Mapping[str, Any]) -> Answer:
    if "tools" in body:
        return whole({"content": None, "tool_calls": [PING]}, "tool_calls")
    if "response_format" not in body:
        return said("ok")
    return whole({"content": '{"ok": true}'})


def listed(*names: str) -> Answer:
    return Answer((orjson.dumps({"data": [{"id": name} for name in names]}),))


def agent(name: str, url: str, **spec: Any) -> dict[str, Any]:
    key = {"secretKeyRef": {"name": "models", "key": "api-key"}}
    model = {"name": "m", "endpoint": url, "apiKey": key}
    return {
        "apiVersion": "diptych.dev/v1alpha1",
        "kind": "Agent",
        "metadata": {"name": name},
        "spec": {"model": model, **spec},
    }


def file_of(folder: Path, *agents: Any) -> str:
    path = folder / "agents.yaml"
    path.write_text(yaml.safe_dump_all(agents))
    return str(path)


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODELS_API_KEY", CANARY)


def test_it_says_what_works_and_what_would_serve_better(typed: Type, tmp_path: Path) -> None:
    with upstream_in_thread(good) as there:
        there.pages["/v1/models"] = listed("m")
        tools = [{"name": "demo", "command": ["diptych", "demo-tools"]}]
        file = file_of(
            tmp_path,
            agent("one", there.url, tools=tools, agents=[{"name": "two"}]),
            agent("two", there.url),
        )
        outcome = typed("check", "--online", file)
        # Both agents have one model, which is asked once; and once with the tools of the first.
        assert len(there.paths) == 5
        assert there.headers[0]["authorization"] == f"bearer {CANARY}"
    assert outcome.code == 0, outcome.out
    out = outcome.out
    assert "actionFormat: native would serve better" in out
    assert "✓ tool server demo: 3 tools in" in out
    assert "✓ agent two: is in these files, and was not asked" in out
    assert out.count("✓ model m: answers at http://127.0.0.1:") == 2
    assert out.endswith("models were sent 5 requests, which took 0 tokens\n")
    assert CANARY not in out + outcome.err


def test_what_does_not_work_is_exit_1_with_a_fix(typed: Type, tmp_path: Path) -> None:
    with upstream_in_thread(lambda _: refusal(error(f"key {CANARY} is bad"), 401)) as there:
        agents = [{"as": "outside", "url": "http://127.0.0.1:9"}]
        tools = [{"name": "gone", "url": "http://127.0.0.1:9/mcp"}]
        outcome = typed(
            "check", "--online", file_of(tmp_path, agent("one", there.url, agents=agents,
                                                         tools=tools))
        )  # fmt: skip
    assert outcome.code == 1
    assert f"✗ model m: The model endpoint {there.url.removesuffix('/v1')} does not" in outcome.out
    assert " accept the API key (HTTP 401)" in outcome.out
    assert "✗ tool server gone: connection refused" in outcome.out
    assert "✗ agent outside: it cannot be reached" in outcome.out
    assert CANARY not in outcome.out + outcome.err


def test_no_form_of_a_secret_is_printed(typed: Type, tmp_path: Path) -> None:
    encoded = b64encode(f"xy{CANARY}".encode()).decode()
    told = f"{encoded} {CANARY}"
    with upstream_in_thread(lambda _: refusal(error(f"{told} is bad"), 400)) as there:
        there.pages["/v1/models"] = listed(CANARY)
        file = file_of(tmp_path, agent("one", there.url))
        outcome = typed("check", "--online", file)
    printed = outcome.out + outcome.err
    assert "[redacted]" in printed
    assert not any(each in printed for each in (CANARY[4:12], encoded[4:12]))


def test_as_json_it_is_one_object_for_each_agent(typed: Type, tmp_path: Path) -> None:
    with upstream_in_thread(lambda _: refusal(error("no such model"), 404)) as there:
        there.pages["/v1/models"] = listed("mm", "n")
        file = file_of(tmp_path, agent("one", there.url))
        outcome = typed("check", "--online", "--json", file)
    assert outcome.code == 1
    (found,) = map(json.loads, outcome.out.splitlines())
    assert (found["file"], found["agent"], found["ok"]) == (file, "one", False)
    assert [sentence["level"] for sentence in found["sentences"]] == ["failed", "failed"]
    assert "set the name to one of mm" in found["sentences"][1]["text"]
    assert found["models"][0]["requests"] == 2
    assert CANARY not in outcome.out + outcome.err


def test_a_script_is_not_asked(typed: Type, tmp_path: Path) -> None:
    spec = {"container": {"env": [{"name": "DEBUG_MOCK_RESPONSES", "value": '["{}"]'}]}}
    outcome = typed(
        "check", "--online", file_of(tmp_path, agent("one", "http://127.0.0.1:9", **spec))
    )
    assert (outcome.code, "a script answers" in outcome.out) == (0, True)


def test_a_script_that_cannot_be_read_is_a_mistake_of_its_file(typed: Type, tmp_path: Path) -> None:
    spec = {"container": {"env": [{"name": "DEBUG_MOCK_RESPONSES", "value": "[oops"}]}}
    file = file_of(tmp_path, agent("one", "http://127.0.0.1:9", **spec))
    outcome = typed("check", file)
    assert (outcome.code, outcome.out) == (2, "")
    place = (
        f"error: {file}: line 8: spec.container.env[0]: DEBUG_MOCK_RESPONSES: is not valid JSON: "
    )
    assert outcome.err.startswith(place)


def test_a_grant_to_a_key_that_there_is_not_is_a_mistake(typed: Type, tmp_path: Path) -> None:
    access = {"keys": [], "grants": [{"to": [{"user": "eve"}, {"key": "cy"}], "may": ["read"]}]}
    file = file_of(tmp_path, agent("a", "http://127.0.0.1:9/v1", access=access))
    outcome = typed("check", file)
    field = "spec.access.grants[0].to[1].key"
    said = f"{file}: line 12: {field}: cy is no name of access.keys; there is none"
    assert outcome.code == 2
    assert said in outcome.err


def test_a_missing_secret_is_misuse(
    typed: Type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MODELS_API_KEY")
    outcome = typed("check", "--online", file_of(tmp_path, agent("one", "http://127.0.0.1:9")))
    assert (outcome.code, outcome.out) == (2, "")
    assert "MODELS_API_KEY" in outcome.err


def shared(kind: str, name: str, **spec: Any) -> dict[str, Any]:
    head = {"apiVersion": "diptych.dev/v1alpha1", "kind": kind}
    return {**head, "metadata": {"name": name}, "spec": spec}


KEY = {"secretKeyRef": {"name": "models", "key": "api-key"}}
CODE = 'def add(a: int, b: int) -> int:\n    """Add."""\n    return a + b\n'


def test_apis_and_servers_that_no_agent_uses_are_asked_too(typed: Type, tmp_path: Path) -> None:
    with upstream_in_thread(good) as there:
        there.pages["/v1/models"] = listed("gpt-5-mini", "gpt-4")
        api = {"endpoint": there.url, "apiKey": KEY}
        file = file_of(
            tmp_path,
            shared("ModelAPI", "house", **api, models=["gpt-5-mini", "o*"]),
            shared("ModelAPI", "plain", **api),
            shared("ModelAPI", "gone", endpoint="http://127.0.0.1:9", default="m"),
            shared("MCPServer", "calc", source={"python": CODE}),
            shared("MCPServer", "wrong", source={"python": "import no_such_module"}),
        )
        outcome = typed("check", "--online", file)
        as_json = typed("check", "--online", "--json", file)
    assert outcome.code == 1
    for said_ in (
        "ModelAPI house",
        "✓ model gpt-5-mini: answers at http://127.0.0.1:",
        "lists 2 models: gpt-5-mini, gpt-4",
        "models: o* is none of them",
        "✗ model m: The model endpoint http://127.0.0.1:9",
        "✓ tool server calc: 1 tool in",
        "No module named 'no_such_module'",
    ):
        assert said_ in outcome.out, outcome.out
    lines = [json.loads(line) for line in as_json.out.splitlines()]
    assert [(line["kind"], line["name"], line["ok"]) for line in lines] == [
        ("ModelAPI", "house", True),
        ("ModelAPI", "plain", True),
        ("ModelAPI", "gone", False),
        ("MCPServer", "calc", True),
        ("MCPServer", "wrong", False),
    ]
    assert CANARY not in outcome.out + as_json.out


def test_an_api_that_refuses_the_key_says_so(typed: Type, tmp_path: Path) -> None:
    with upstream_in_thread(good) as there:
        there.pages["/v1/models"] = refusal(error("no"), 401)
        api = shared("ModelAPI", "house", endpoint=there.url, apiKey=KEY)
        outcome = typed("check", "--online", file_of(tmp_path, api))
    assert outcome.code == 1
    assert "refuses the key (status 401 for /models)" in outcome.out


def test_without_online_nothing_is_asked_or_read(
    typed: Type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MODELS_API_KEY")
    with upstream_in_thread(good) as there:
        file = file_of(tmp_path, agent("one", there.url))
        assert typed("check", file).out == f"{file}: one: ok\n"
        as_json = typed("check", "--json", file)
        assert json.loads(as_json.out) == {"file": file, "agent": "one", "ok": True}
        outcome = typed("check", "--secrets", "keys.env", file)
        assert (outcome.code, "go with --online" in outcome.err) == (2, True)
        assert not there.paths


POLICY = [
    {"match": {"tool": "demo__ehco"}, "do": "ask"},
    {"match": {"agent": "tow"}, "do": "deny"},
    {"match": {"tool": "pay*"}, "do": "deny"},
]
DEMO = {
    "name": "demo",
    "command": ["diptych", "demo-tools"],
    "allow": ["echo", "ad*", "calculte"],
    "overrides": [{"tool": "ecoh", "terminal": True}],
}


def test_online_a_name_that_nothing_offers_is_an_error_and_a_glob_a_note(
    typed: Type, tmp_path: Path
) -> None:
    with upstream_in_thread(good) as there:
        one = agent("one", there.url, tools=[DEMO], agents=[{"name": "two"}], policy=POLICY)
        outcome = typed("check", "--online", file_of(tmp_path, one, agent("two", there.url)))
    assert outcome.code == 1
    said = outcome.out.replace(", so this has no effect", " …").replace(
        "no tool of server demo", "…"
    )
    assert [line.strip() for line in said.splitlines() if "…" in line] == [
        "✗ spec.policy[0].match.tool: no tool is called demo__ehco … (did you mean demo__echo?)",
        "✗ spec.policy[1].match.agent: no agent is called tow … (did you mean two?)",
        "! spec.policy[2].match.tool: no tool matches pay* …",
        "! spec.tools[0].allow[1]: … matches ad* …",
        "✗ spec.tools[0].allow[2]: … is called calculte …",
        "✗ spec.tools[0].overrides[0].tool: … is called ecoh … (did you mean echo?)",
    ]


def test_a_check_warns_of_names_that_the_manifest_itself_shows_to_be_wrong(
    typed: Type, tmp_path: Path
) -> None:
    rules = [*POLICY, {"match": {"tool": "dmeo__echo"}, "do": "ask"}]
    exact = DEMO | {"allow": ["echo"]}
    for tools, wrong in ((DEMO, (1, 3)), (exact, (0, 1, 2, 3))):
        one = agent("one", "http://m", tools=[tools], agents=[{"name": "two"}], policy=rules)
        outcome = typed("check", file_of(tmp_path, one, agent("two", "http://m")))
        assert outcome.code == 0
        places = [f"spec.policy[{n}].match." for n in wrong]
        places += ["spec.tools[0].overrides[0].tool: "] if tools is exact else []
        lines = outcome.err.splitlines()
        assert len(lines) == len(places), lines
        for line, place in zip(lines, places, strict=True):
            assert line.startswith(f"warning: {tmp_path}/agents.yaml: document 1 (one): {place}")
