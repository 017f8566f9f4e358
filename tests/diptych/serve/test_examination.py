"""What an examination asks, of servers that are really there."""

from collections.abc import Mapping
from typing import Any

from support.hostile import listed, mcp_app, serving
from support.stack import stage
from support.upstream_habits import error, refusal, said, whole
from support.upstream_server import Answer, upstream_server

from diptych.manifest.settings import (
    AgentConfig,
    ModelConfig,
    PeerConfig,
    ToolServerConfig,
)
from diptych.mcp.tool_rules import NAME_RULE
from diptych.models.connection import open_http_session
from diptych.serve.examination import AgentFindings, Examiner, PeerFindings


def hello(body: Mapping[str, Any]) -> Answer:
    return said("ok") if body["stream"] else whole({"content": "ok"})


def echo(text: str) -> str:
    return text


def planet(name: str) -> str:
    return name


async def examined(*configs: AgentConfig) -> tuple[list[AgentFindings], Examiner]:
    async with open_http_session() as session:
        examiner = Examiner(session, ["http://0.agent.invalid"])
        return [await examiner.examine(config) for config in configs], examiner


async def test_cards_are_read_of_all_but_the_agents_of_the_same_files() -> None:
    async with stage("{}", "x") as there:
        peers = (
            PeerConfig("near", "http://0.agent.invalid"),
            PeerConfig("well", there.url),
            PeerConfig("ill", "http://127.0.0.1:9"),
        )
        (found,), _ = await examined(AgentConfig("a", mock_responses="[]", agents=peers))
    assert found.peers == (
        PeerFindings("near", is_asked=False),
        PeerFindings("well"),
        PeerFindings("ill", "it cannot be reached"),
    )


async def test_tool_servers_give_their_tools_or_why_not() -> None:
    servers = (
        ToolServerConfig("demo", functions=(echo, planet), allow=("echo", "pay*")),
        ToolServerConfig("gone", url="http://127.0.0.1:9/mcp"),
    )
    (found,), _ = await examined(AgentConfig("a", mock_responses="[]", tools=servers))
    demo, gone = found.servers
    assert (demo.reason, demo.tools) == (None, ("echo",))
    assert demo.seconds > 0
    assert gone.reason == "connection refused"


async def test_a_server_of_which_some_tools_are_left_out_can_be_used() -> None:
    """Each of these lists what nobody can call; one lists nothing else."""
    long, spacious = "x" * 4_097, "x" + " " * 4_097
    echoes = [listed("echo", long), listed("echo2", spacious), listed("a__b")]
    async with serving(mcp_app(echoes)) as some:
        async with serving(mcp_app([listed("a__b")])) as none:
            pins = dict.fromkeys(["echo", "echo2"], "sha256:another")
            servers = (
                ToolServerConfig("some", url=f"{some}/mcp"),
                ToolServerConfig("none", url=f"{none}/mcp"),
                ToolServerConfig("changed", url=f"{some}/mcp", pins=pins),
            )
            (found,), _ = await examined(AgentConfig("a", mock_responses="[]", tools=servers))
    left_out = f"1 left out, as {NAME_RULE}: a__b"
    assert [(s.reason, s.tools, s.left_out, s.cut) for s in found.servers] == [
        (None, ("echo", "echo2"), (left_out,), ("echo",)),
        (left_out, (), (), ()),
        ("changed since pinned: echo, echo2", (), (), ()),
    ]


async def test_an_endpoint_is_asked_once_for_each_name_and_key() -> None:
    async with upstream_server(hello) as there:

        def keyed(key: str, name: str = "m") -> ModelConfig:
            return ModelConfig(name, there.url, api_key=lambda: key)

        agents = [AgentConfig("a", model=keyed("one")), AgentConfig("b", model=keyed("one"))]
        found, examiner = await examined(*agents)
        assert found[0].models == found[1].models
        assert len(there.paths) == examiner.requests == 4
        model = ModelConfig("m", there.url, fallbacks=(keyed("one"), keyed("two"), keyed("", "n")))
        (more,), examiner = await examined(AgentConfig("c", model=model))
    assert [each.failure is None for each in more.models] == [True, True, True, False]
    assert examiner.requests == 12  # without its key the last one is not sent anything


async def test_an_endpoint_is_asked_with_the_tools_that_the_agent_has() -> None:
    def picky(body: Mapping[str, Any]) -> Answer:
        names = [tool["function"]["name"] for tool in body.get("tools", ())]
        if "echo" in names:
            place = f"tools[{names.index('echo')}].function.parameters"
            return refusal(error("Invalid schema for function 'echo'.", param=place))
        return hello(body)

    async with upstream_server(picky) as there:
        model = ModelConfig("m", there.url)
        server = ToolServerConfig("demo", functions=(echo, planet))
        (with_tools, without), _ = await examined(
            AgentConfig("a", model=model, tools=(server,)), AgentConfig("b", model=model)
        )
    (found,), (other,) = with_tools.models, without.models
    assert found.tools
    assert other.tools
    assert not found.tools.is_taken
    assert "It does not accept the tool 'echo'" in found.tools.refusal
    assert (other.tools.is_taken, other.tools.refusal) == (True, "")
