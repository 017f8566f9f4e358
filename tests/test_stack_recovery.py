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
