"""Servers that go and come back between two questions; the agent is never restarted."""

import socket

from support.model_server import ModelServer, model_server
from support.stack import Stage, agent, call, stage, stages, tool_server, until

from diptych.manifest.settings import PeerConfig, ToolServerConfig


async def echo(text: str) -> str:
    """Say a text again."""
    return text


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def asked(helper: Stage, model: ModelServer) -> str:
    """Ask, and give what the model was told of its call."""
    model.play(call("echo", text="here"), "{}", "Done.")
    assert await helper.answer() == "Done."
    return model.told(1)


async def test_a_tool_server_may_go_and_come_back_as_often_as_it_likes() -> None:
    port = free_port()
    config = ToolServerConfig("box", url=f"http://127.0.0.1:{port}/mcp")
    async with model_server() as model, stage(model=model, tools=(config,)) as helper:

        async def used() -> bool:
            return "Result of" in await asked(helper, model)

        never_connected = await asked(helper, model)
        assert "unavailable: box" in never_connected  # the tool may be its (loop.md §5)
        assert "box" in model.requests[0]["messages"][0]["content"].partition("Unavailable")[2]
        for _ in range(2):
            async with tool_server(echo, port=port):
                await until(used)
                assert (await helper.http.get("/ready")).json()["missing"] == []
            assert "Error from tool echo" in await asked(helper, model)
            assert "unavailable: box" in await asked(helper, model)
            (missing,) = (await helper.http.get("/ready")).json()["missing"]
            assert missing["name"] == "box"
            assert "box" in model.requests[0]["messages"][0]["content"].partition("Unavailable")[2]


async def test_an_agent_that_is_away_is_a_result_and_not_a_failure() -> None:
    peers = (PeerConfig("writer", "http://127.0.0.1:9"),)
    async with (
        model_server('{"agent": "writer", "task": "t"}', "{}", "Sorry.") as model,
        stage(model=model, agents=peers) as helper,
    ):
        assert await helper.answer() == "Sorry."
        assert model.told(1) == "[Step 1/5] Error from agent writer:\nunavailable: writer"
        assert (await helper.facts()) == ["user_message", "delegation_error", "agent_response"]


async def test_an_agent_that_fails_is_a_result_with_its_reason() -> None:
    peers = (PeerConfig("writer", "writer"),)
    writer = agent({"error": "its model broke"}, name="writer")
    front = agent('{"agent": "writer", "task": "t"}', "{}", "Sorry.", agents=peers)
    async with stages(front, writer) as (helper, _):
        assert await helper.answer() == "Sorry."
        failed = (await helper.memory())[2]
        assert failed["event_type"] == "delegation_error"
        assert "its model broke" in failed["content"]


async def test_a_delegation_never_comes_back_to_who_asked() -> None:
    delegates = '{"agent": "%s", "task": "t"}'
    one = agent(delegates % "two", "{}", "One.", name="one", agents=(PeerConfig("two", "two"),))
    two = agent(delegates % "one", "{}", "Two.", name="two", agents=(PeerConfig("one", "one"),))
    async with stages(one, two) as (first, second):
        assert await first.answer() == "One."
        assert (await second.facts())[1] == "delegation_error" or (await second.facts())[
            2
        ] == "delegation_error"
        assert len((await first.http.get("/v1/runs")).json()["data"]) == 1
