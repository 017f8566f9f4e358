"""Questions of servers to people, in both eras of the protocol and over each transport."""

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import mcp_types
import pytest
from mcp import MCPError
from mcp.server import MCPServer
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.resolve import Elicit, Resolve
from mcp_types.jsonrpc import HEADER_MISMATCH, URL_ELICITATION_REQUIRED
from pydantic import BaseModel
from support.hostile import App, serving
from support.mcp_tools import connected, ends_as, older, tool_of, unheard, until

from diptych.core.events import InputRequest
from diptych.core.messages import JSON
from diptych.manifest.settings import OverrideConfig, ToolServerConfig
from diptych.ports import CallContext, InputAnswer, Resumed

TALLY = Path(__file__).parent / "servers" / "tally.py"
YES = InputAnswer("accept", {"name": "Ada"})


@dataclass
class Person:
    """Answers questions in turn; the last answer again and again, or never without one."""

    answers: list[InputAnswer] = field(default_factory=list)
    asked: list[InputRequest] = field(default_factory=list)
    states: list[JSON] = field(default_factory=list)
    withdrawn: int = 0

    async def ask(self, request: InputRequest, state: JSON = None) -> InputAnswer:
        self.asked.append(request)
        self.states.append(state)
        try:
            await asyncio.sleep(0.01 if self.answers else 60)
        except asyncio.CancelledError:
            self.withdrawn += 1
            raise
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def context(self, run: str = "run", resumed: Resumed | None = None) -> CallContext:
        return CallContext(lambda _: None, run, "call_1", resumed=resumed, ask=self.ask)


class Name(BaseModel):
    name: str
    title: str = "Countess"


def asking() -> MCPServer[Any]:
    """Ask as both eras do: over the open connection, or in place of a result."""
    server = MCPServer("asking")

    async def who() -> Elicit[Name]:
        return Elicit("Who are you?", Name)

    @server.tool()
    async def greet(name: Annotated[Name, Resolve(who)]) -> str:
        return f"Hello {name.title} {name.name}"

    return server


Served = Callable[[MCPServer[Any]], App]
NEWER: Served = lambda server: server.streamable_http_app()  # noqa: E731
OLDER: Served = lambda server: older(server.streamable_http_app())  # noqa: E731
SSE: Served = lambda server: server.sse_app(sse_path="/mcp")  # noqa: E731
ERAS = [
    pytest.param(NEWER, id="2026-07-28"),
    pytest.param(OLDER, id="2025-11-25"),
    pytest.param(SSE, id="HTTP+SSE"),
]


def server_at(url: str, **more: Any) -> ToolServerConfig:
    return ToolServerConfig("s", url=f"{url}/mcp", **more)


@pytest.mark.parametrize("served", ERAS)
async def test_a_question_is_answered_by_the_person_of_its_call(served: Served) -> None:
    async with serving(served(asking())) as url, connected(server_at(url)) as tools:
        greet = await tool_of(tools, "s__greet")
        people = [Person([InputAnswer("accept", {"name": name})]) for name in ("Ada", "Grace")]
        calls = [tools.call(greet, {}, person.context()) for person in people]
        texts = [output.text for output in await asyncio.gather(*calls)]
        if served is not SSE:  # whose one stream does not say which call asks
            assert texts == ["Hello Countess Ada", "Hello Countess Grace"]
        [question] = people[1].asked[:1]
        assert (question.kind, question.message) == ("form", "Who are you?")
        assert question.schema is not None
        assert question.schema["required"] == ["name"]
        for action in ("decline", "cancel"):
            with ends_as("failed", action):
                await tools.call(greet, {}, Person([InputAnswer(action)]).context())


async def test_one_stream_for_calls_of_several_runs_asks_none_of_them() -> None:
    """It would show the question of one person's run to another."""
    async with serving(SSE(asking())) as url, connected(server_at(url)) as tools:
        greet = await tool_of(tools, "s__greet")
        first, second = Person(), Person([YES])
        waiting = asyncio.create_task(tools.call(greet, {}, first.context("one")))
        await until(lambda: first.asked)
        with ends_as("failed", "several, of different runs"):
            await tools.call(greet, {}, second.context("two"))
        assert second.asked == []
        waiting.cancel()
        await asyncio.wait({waiting})
        await until(lambda: first.withdrawn)


async def test_a_command_asks(tmp_path: Path) -> None:
    command = (sys.executable, str(TALLY), "stdio", str(tmp_path / "tally"))
    async with connected(ToolServerConfig("t", command=command)) as tools:
        person = Person([InputAnswer("accept", {"answer": "blue"})])
        tool = await tool_of(tools, "t__ask")
        assert (await tools.call(tool, {}, person.context())).text == "so blue"


@pytest.mark.parametrize("served", ERAS)
async def test_the_time_limit_of_a_call_pauses_while_a_person_thinks(served: Served) -> None:
    server = asking()
    limit = OverrideConfig("*", timeout=1.0)
    async with (
        serving(served(server)) as url,
        connected(server_at(url, overrides=(limit,))) as tools,
    ):
        person = Person()
        call = asyncio.create_task(
            tools.call(await tool_of(tools, "s__greet"), {}, person.context())
        )
        await until(lambda: person.asked)
        await asyncio.sleep(1.3)
        assert not call.done()
        call.cancel()
        await asyncio.wait({call})
        await until(lambda: person.withdrawn == len(person.asked))


async def test_roots_and_sampling_are_refused_by_name(caplog: pytest.LogCaptureFixture) -> None:
    server = MCPServer("curious")

    @server.tool()
    async def look(ctx: Context) -> str:
        texts = []
        for request in (mcp_types.ListRootsRequest(), sampling):
            try:
                await ctx.session.send_request(request, mcp_types.EmptyResult)
            except MCPError as error:
                texts.append(error.message)
        return "; ".join(texts)

    said = mcp_types.SamplingMessage(role="user", content=DONE.content[0])
    params = mcp_types.CreateMessageRequestParams(messages=[said], max_tokens=1)
    sampling = mcp_types.CreateMessageRequest(params=params)
    async with serving(OLDER(server)) as url, connected(server_at(url)) as tools:
        tool = await tool_of(tools, "s__look")
        for _ in range(2):
            text = (await tools.call(tool, {}, Person([YES]).context())).text
    roots, sampled = "roots, which Diptych does not offer", "sampling, which Diptych does not offer"
    assert text == f"it requests {roots}; it requests {sampled}"
    logged = [each.getMessage() for each in caplog.records if "requests" in each.getMessage()]
    assert logged == [f"tool server s requests {each}" for each in (roots, sampled)]


class Foreign:
    """A server of 2026-07-28 that answers each call with the next of `results`."""

    def __init__(self, *results: Any) -> None:
        self.results = list(results)
        self.calls: list[mcp_types.CallToolRequestParams] = []
        self.server: Server[Any] = Server("f", on_list_tools=self._list, on_call_tool=self._call)

    async def _list(self, _: object, __: object) -> mcp_types.ListToolsResult:
        tool = mcp_types.Tool(name="book", input_schema={"type": "object"})
        return mcp_types.ListToolsResult(tools=[tool])

    async def _call(self, _: ServerRequestContext, params: mcp_types.CallToolRequestParams) -> Any:
        self.calls.append(params)
        result = self.results.pop(0) if len(self.results) > 1 else self.results[0]
        if isinstance(result, MCPError):
            raise result
        return result

    def served(self, *, older_only: bool = False) -> App:
        app = self.server.streamable_http_app()
        return older(app) if older_only else app


def form(message: str, **properties: Any) -> mcp_types.ElicitRequest:
    schema = {"type": "object", "properties": properties}
    params = mcp_types.ElicitRequestFormParams(message=message, requested_schema=schema)
    return mcp_types.ElicitRequest(params=params)


def page(url: str = "https://pay.example/1", number: str | None = None) -> mcp_types.ElicitRequest:
    params = mcp_types.ElicitRequestURLParams(message="Pay", url=url, elicitation_id=number)
    return mcp_types.ElicitRequest(params=params)


def needing(state: str | None = None, **requests: Any) -> mcp_types.InputRequiredResult:
    return mcp_types.InputRequiredResult(input_requests=requests or None, request_state=state)


DONE = mcp_types.CallToolResult(content=[mcp_types.TextContent(type="text", text="booked")])
SEAT = {"type": "string", "default": "aisle"}


async def booked(foreign: Foreign, person: Person, resumed: Resumed | None = None) -> str:
    async with serving(foreign.served()) as url, connected(server_at(url)) as tools:
        tool = await tool_of(tools, "s__book")
        return (await tools.call(tool, {"to": "Rome"}, person.context(resumed=resumed))).text


async def test_questions_of_one_result_are_asked_in_turn_and_answered_together() -> None:
    foreign = Foreign(needing("s1", seat=form("Seat?", seat=SEAT), pay=page()), needing("s2"), DONE)
    person = Person([InputAnswer("accept", {}), InputAnswer("decline")])
    assert await booked(foreign, person) == "booked"
    assert [(each.kind, each.url) for each in person.asked] == [
        ("form", ""),
        ("url", "https://pay.example/1"),
    ]
    _, second, third = foreign.calls
    assert second.request_state == "s1"
    assert second.input_responses == {
        "seat": mcp_types.ElicitResult(action="accept", content={"seat": "aisle"}),
        "pay": mcp_types.ElicitResult(action="decline"),
    }
    assert (third.request_state, third.input_responses) == ("s2", None)


async def test_a_call_is_sent_again_ten_times() -> None:
    foreign = Foreign(*[needing(q=form("Again?"))] * 10, DONE)
    assert await booked(foreign, Person([YES] * 10)) == "booked"


@pytest.mark.parametrize("answered_first", [0, 1])
async def test_a_call_goes_on_in_another_process_with_what_was_answered(
    answered_first: int,
) -> None:
    foreign = Foreign(needing("s", seat=form("Seat?", seat=SEAT), food=form("Food?")), DONE)
    first = Person([YES] * (answered_first + 1))
    first.answers = [YES] * answered_first
    async with serving(foreign.served()) as url, connected(server_at(url)) as tools:
        tool = await tool_of(tools, "s__book")
        call = asyncio.create_task(tools.call(tool, {"to": "Rome"}, _until(first, answered_first)))
        await until(lambda: len(first.states) > answered_first)
        call.cancel()
        await asyncio.wait({call})
    second = Person([InputAnswer("accept", {"food": "soup"})])
    resumed = Resumed(first.states[-1], InputAnswer("accept", {"name": "now"}))
    assert await booked(foreign, second, resumed) == "booked"
    assert len(foreign.calls) == 2
    assert len(second.asked) == 1 - answered_first
    assert list(foreign.calls[1].input_responses or ()) == ["seat", "food"]
    assert foreign.calls[1].request_state == "s"


def _until(person: Person, answered: int) -> CallContext:
    """Answer so many questions, and no more."""

    async def ask(request: InputRequest, state: JSON = None) -> InputAnswer:
        person.states.append(state)
        if len(person.states) <= answered:
            return YES
        await asyncio.sleep(60)
        return YES

    return CallContext(lambda _: None, "run", "call_1", ask=ask)


async def test_what_cannot_be_asked_fails_the_call() -> None:
    for result, reason in (
        (needing("s"), "book asked more than 10 times"),
        (needing(a=form("Again?")), "book asked more than 10 times"),
        (needing(**{str(n): form("Again?") for n in range(21)}), "asks more than 20 questions"),
        (
            needing(q=form("?"), r=mcp_types.ListRootsRequest()),
            "book needs roots, which Diptych does not offer",
        ),
        (needing(p=page("javascript:alert(1)")), "a URL that is not http or https"),
    ):
        with ends_as("failed", reason):
            await booked(Foreign(result), Person([YES]))


async def test_a_call_whose_headers_are_outdated_is_sent_again_once() -> None:
    outdated = MCPError(HEADER_MISMATCH, "the schema has changed")
    foreign = Foreign(outdated, DONE)
    assert await booked(foreign, Person()) == "booked"
    assert len(foreign.calls) == 2
    with ends_as("failed", "the schema has changed"):
        await booked(Foreign(outdated), Person())


def pages(*ids: str) -> MCPError:
    wanted = [page(number=each).params.model_dump(by_alias=True, exclude_none=True) for each in ids]
    return MCPError(URL_ELICITATION_REQUIRED, "visit first", {"elicitations": wanted})


@pytest.mark.parametrize(
    ("results", "answer", "text", "calls"),
    [
        pytest.param([pages("a", "b"), DONE], "accept", "booked", 2, id="completed"),
        pytest.param([pages("a")], "accept", "visit first", 2, id="required again"),
        pytest.param([pages("a"), DONE], "decline", "nobody completed", 1, id="declined"),
    ],
)
async def test_a_call_that_requires_pages_is_made_again_once_they_are_completed(
    results: list[Any], answer: Any, text: str, calls: int
) -> None:
    """The error -32042 of 2025-11-25."""
    foreign = Foreign(*results)
    async with (
        serving(foreign.served(older_only=True)) as url,
        connected(server_at(url)) as tools,
    ):
        tool, person = await tool_of(tools, "s__book"), Person([InputAnswer(answer)])
        if text == "booked":
            assert (await tools.call(tool, {}, person.context())).text == text
        else:
            with ends_as("failed", text):
                await tools.call(tool, {}, person.context())
    assert len(foreign.calls) == calls


async def test_a_page_that_the_server_says_was_completed_is_accepted() -> None:
    server, person = MCPServer("pages"), Person()

    @server.tool()
    async def pay(ctx: Context) -> str:
        async def complete() -> None:
            await until(lambda: person.asked)
            for each in ("another", "this"):
                params = mcp_types.ElicitCompleteNotificationParams(elicitation_id=each)
                await ctx.session.send_notification(
                    mcp_types.ElicitCompleteNotification(params=params)
                )

        completing = asyncio.create_task(complete())
        answer = await ctx.elicit_url("Pay", "https://pay.example/1", "this")
        await completing
        return answer.action

    async with serving(OLDER(server)) as url, connected(server_at(url)) as tools:
        tool = await tool_of(tools, "s__pay")
        assert (await tools.call(tool, {}, person.context())).text == "accept"
    await until(lambda: person.withdrawn)


async def test_a_server_that_ends_its_call_withdraws_its_question() -> None:
    server, person = MCPServer("hasty"), Person()

    @server.tool()
    async def hurry(ctx: Context) -> str:
        asking = asyncio.create_task(ctx.elicit("Who?", Name))
        await until(lambda: person.asked)
        await asyncio.sleep(0)
        del asking
        return "never mind"

    async with serving(OLDER(server)) as url, connected(server_at(url)) as tools:
        tool: Any = await tool_of(tools, "s__hurry")
        assert (await tools.call(tool, {}, person.context())).text == "never mind"
        await until(lambda: person.withdrawn)


async def test_nobody_to_ask_is_a_cancel() -> None:
    async with serving(OLDER(asking())) as url, connected(server_at(url)) as tools:
        with ends_as("failed", "cancel"):
            await tools.call(await tool_of(tools, "s__greet"), {}, unheard)
