"""The library's `Agent`: from a file, over a real Redis, and with wrong arguments."""

import asyncio
import json
from collections.abc import Iterator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from support.doubles import ListeningModel
from support.redis_server import RedisServer, free_port, redis_server

from diptych import Agent, DelegationResultEvent, OtherEvent, RunError, TextEvent
from diptych.core.errors import ConfigError, StoreError
from diptych.manifest import API_VERSION

SLOW = {"chunk_ms": 20, "content": "one two three four five six seven eight nine ten"}


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture(autouse=True)
def clean(request: pytest.FixtureRequest) -> None:
    if "server" in request.fixturenames:
        request.getfixturevalue("server").ask("FLUSHALL")


def agent(server: RedisServer, *replies: Any, name: str = "helper") -> Agent:
    return Agent(name, store=server.url, mock_responses=["{}", *replies])


def problems_of(**settings: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        Agent("helper", mock_responses=["x"], **settings)
    return list(caught.value.problems)


# ---- a file


def manifest(name: str, *replies: str, **spec: Any) -> str:
    """Write an agent that answers by a script, as a document of a file."""
    env = [{"name": "DEBUG_MOCK_RESPONSES", "value": json.dumps(replies)}]
    content = {
        "apiVersion": API_VERSION,
        "kind": "Agent",
        "metadata": {"name": name},
        "spec": {"container": {"env": env}} | spec,
    }
    return json.dumps(content)


def write(folder: Path, *documents: str) -> Path:
    file = folder / "team.yaml"
    file.write_text("\n---\n".join(documents))
    return file


SECOND = manifest("second", "{}", "I am second.")
TEAM = (manifest("first", "{}", "I am first."), SECOND)


async def test_the_first_agent_of_a_file_answers(tmp_path: Path) -> None:
    async with Agent.from_file(write(tmp_path, *TEAM)) as one:
        assert str(await one.run("Who are you?")) == "I am first."


async def test_the_named_agent_of_a_file_answers_and_has_its_own_memory(tmp_path: Path) -> None:
    file = write(tmp_path, *TEAM)
    async with Agent.from_file(str(file), name="second") as one:
        assert str(await one.run("Who are you?", session_id="talk")) == "I am second."
        events = await one.memory.get_session_events("talk")
        assert [event.content for event in events] == ["Who are you?", "I am second."]
    async with Agent.from_file(file) as another:
        assert await another.memory.get_session_events("talk") == []


async def test_an_agent_of_a_file_delegates_to_the_other_one(tmp_path: Path) -> None:
    ask = json.dumps({"agent": "second", "task": "Who are you?"})
    first = manifest("first", ask, "{}", "I asked.", agents=[{"name": "second"}])
    async with Agent.from_file(write(tmp_path, first, SECOND)) as one:
        events = (await one.run("Ask the other one.")).events
    results = [event.text for event in events if isinstance(event, DelegationResultEvent)]
    assert results == ["I am second."]


def test_a_name_that_no_agent_of_the_file_has_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path, *TEAM)
    with pytest.raises(ConfigError) as caught:
        Agent.from_file(file, name="third")
    assert str(caught.value) == f"{file}: there is no Agent called third; there is first, second"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        pytest.param("kind: Agent\nspec: }", "line 2, column 7: is not valid YAML", id="no YAML"),
        pytest.param(
            manifest("first", "{}", loop={"maxSteps": 0}),
            "line 1: spec.loop.maxSteps: must be 1 or more (got 0)",
            id="a mistake in the manifest",
        ),
        pytest.param(
            manifest("first"),
            "line 1: spec.container.env[0]: DEBUG_MOCK_RESPONSES: ",
            id="no replies",
        ),
    ],
)
async def test_a_broken_file_is_refused_with_its_name_and_place(
    tmp_path: Path, text: str, line: str
) -> None:
    file = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        await Agent.from_file(file).start()
    assert str(caught.value).startswith(f"{file}: {line}")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such file"):
        Agent.from_file(tmp_path / "none.yaml")


# ---- a store


async def test_a_session_survives_its_agent_object(server: RedisServer) -> None:
    async with agent(server, "I shall remember.") as first:
        assert str(await first.run("My cat is Tom.", session_id="talk")) == "I shall remember."
    model = ListeningModel("{}", "Tom.")
    async with Agent("helper", model=model, store=server.url) as second:
        assert str(await second.run("Who is my cat?", session_id="talk")) == "Tom."
    told = [message.content for message in model.requests[-1]]
    assert [text for text in told if text in {"My cat is Tom.", "I shall remember."}] == [
        "My cat is Tom.",
        "I shall remember.",
    ]


async def test_what_one_object_leaves_another_one_finishes(server: RedisServer) -> None:
    first = agent(server, SLOW)
    async with agent(server, SLOW) as second:
        events = []
        async with aclosing(first.stream("Count", session_id="talk")) as stream:
            async for event in stream:
                events.append(event)
                if isinstance(event, TextEvent):
                    await first.aclose()
        assert isinstance(events[-1], OtherEvent)
        assert events[-1].name == "handed_over"
        assert await answer_of(second, "talk") == SLOW["content"]


async def test_a_question_whose_agent_is_closed_is_no_empty_answer(server: RedisServer) -> None:
    first = agent(server, SLOW)
    await first.start()
    asking = asyncio.create_task(first.run("Count", session_id="talk"))
    while not await first.memory.get_session_events("talk"):  # noqa: ASYNC110 - told to nobody
        await asyncio.sleep(0.01)
    await first.aclose()
    with pytest.raises(RunError, match="the run goes on at another one") as caught:
        await asking
    assert caught.value.code == "handed_over"


async def test_a_reference_leads_to_the_store_as_in_a_manifest(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_URL", server.url)
    store = {"urlFrom": {"secretKeyRef": {"name": "redis", "key": "url"}}}
    async with Agent("helper", store=store, retention="1m", mock_responses=["{}", "Hi."]) as one:
        await one.run("Hello", session_id="talk")
    assert set(map(bytes.decode, server.ask("KEYS", "*:session:*"))) == {
        "diptych:default:helper:session:talk"
    }
    assert 0 < server.ask("TTL", "diptych:default:helper:session:talk") <= 66


async def test_a_store_that_is_away_is_told_and_comes_back_by_itself() -> None:
    port = free_port()
    async with Agent(
        "helper", store=f"redis://127.0.0.1:{port}", mock_responses=["{}", "Hi."]
    ) as one:
        with pytest.raises(StoreError, match="the store cannot be reached"):
            await one.run("Hello")
        with redis_server(port=port):
            assert await when_it_can(one, "Hello") == "Hi."


async def test_without_a_store_sessions_end_with_their_object() -> None:
    async with Agent("helper", mock_responses=["{}", "Hi."]) as one:
        await one.run("Hello", session_id="talk")
        assert len(await one.memory.get_session_events("talk")) == 2
    async with Agent("helper", mock_responses=["{}", "Hi."]) as another:
        assert await another.memory.get_session_events("talk") == []


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        pytest.param(
            {"store": "http://:sesame@localhost"},
            "spec.sessions.redis: the store's URL must start with redis://, rediss://, unix:// or "
            "redis+sentinel://",
            id="no Redis",
        ),
        pytest.param(
            {"store": {"url": "redis://:sesame@localhost"}},
            'spec.sessions.redis.url: is not a known field (did you mean "urlFrom"?)',
            id="a field that a manifest has not",
        ),
        pytest.param(
            {"store": {"urlFrom": {"secretKeyRef": {"name": "no", "key": "url"}}}},
            "spec.sessions.redis.urlFrom: key url of Secret no is missing; set NO_URL, or give "
            "--secrets FILE",
            id="a reference that leads nowhere",
        ),
        pytest.param(
            {"retention": "1h"},
            "spec.sessions: retention needs redis: without it sessions end with their pod",
            id="a retention of nothing",
        ),
    ],
)
def test_what_is_no_store_is_refused_as_in_a_manifest(
    settings: Mapping[str, Any], line: str
) -> None:
    assert problems_of(**settings) == [f"Agent('helper'): {line}"]
    assert "sesame" not in line


@pytest.mark.parametrize(
    ("given", "meant"),
    [("max_step", "max_steps"), ("maxSteps", "max_steps"), ("instruction", "instructions")],
)
def test_a_misspelt_argument_is_told_the_one_of_python(given: str, meant: str) -> None:
    said = f"Agent('helper'): {given}: is not a known argument (did you mean \"{meant}\"?)"
    assert problems_of(**{given: 1}) == [said]


def test_an_argument_like_no_other_is_told_all_there_are() -> None:
    [said] = problems_of(loop={"maxSteps": 1})
    assert "loop: is not a known argument; known here: name, model, model_api, " in said
    assert ", hook_seconds, max_steps, " in said


async def answer_of(agent: Agent, session_id: str) -> str:
    """Wait for the answer of a session's run."""
    async with asyncio.timeout(15):
        while True:
            events = await agent.memory.get_session_events(session_id)
            if events and events[-1].event_type == "agent_response":
                return str(events[-1].content)
            await asyncio.sleep(0.02)


async def when_it_can(agent: Agent, question: str) -> str:
    """Ask until the store is there."""
    async with asyncio.timeout(15):
        while True:
            try:
                return str(await agent.run(question))
            except StoreError:
                await asyncio.sleep(0.05)
