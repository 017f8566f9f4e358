"""`McpTools` with functions of this process and commands, and what a manifest says of tools."""

import ast
import asyncio
import functools
import os
import re
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import mcp_types
import pytest
from mcp.server.mcpserver import Image
from support import mcp_tools
from support.mcp_tools import ends_as, reasons, tool_of, unheard, until

from diptych import Agent
from diptych.core.catalog import Tool
from diptych.core.errors import ConfigError
from diptych.core.messages import CallOutput
from diptych.manifest.settings import OverrideConfig, ToolServerConfig
from diptych.mcp import ConnectionSettings
from diptych.mcp.tool_rules import catalog_tools, timeout_of

SETTINGS = ConnectionSettings(initial_delay=0.02)
connected = functools.partial(mcp_tools.connected, settings=SETTINGS)
TALLY = Path(__file__).parent / "servers" / "tally.py"


# Functions


def sync_double(n: int) -> int:
    """Double a number."""
    return 2 * n


async def async_double(n: int) -> int:
    await asyncio.sleep(0)
    return 2 * n


def divide(n: int) -> float:
    return 1 / n


async def test_a_panic_within_a_function_is_told() -> None:
    class Panic(BaseException):
        """As a library in Rust raises it."""

    def sync_break() -> None:
        raise Panic("index out of bounds")

    async with (
        connected(ToolServerConfig("f", functions=(sync_break,))) as tools,
        asyncio.timeout(5),
    ):
        with ends_as("failed", "Panic: index out of bounds"):
            await tools.call(tools.snapshot()[0][0], {}, unheard)


async def test_a_function_that_blocks_its_thread_runs_into_its_limit() -> None:
    released = threading.Event()

    def block() -> None:
        released.wait(10)

    async with connected(ToolServerConfig("f", functions=(block,), timeout=0.05)) as tools:
        [tool] = tools.snapshot()[0]
        with ends_as("unknown", "block gave no answer within 0.05 s"):
            await tools.call(tool, {}, unheard)
        with ends_as("timeout", "^block gave no answer within 0.05 s$"):
            await tools.call(replace(tool, read_only=True), {}, unheard)
        released.set()


class Plain:
    def __call__(self) -> Iterator[int]:
        yield 1


async def counts() -> AsyncIterator[int]:
    yield 1


def yields() -> Iterator[int]:
    yield 1


def typed(*, takes: Any = int, gives: Any = int) -> Callable[..., Any]:
    def tool(what: Any) -> Any:
        return what

    tool.__annotations__ = {"what": takes, "return": gives}
    return tool


def takes_all(*n: int) -> None: ...
def takes_first(n: int, /) -> None: ...
def untyped(n): ...  # type: ignore[no-untyped-def]


def test_a_function_that_cannot_be_a_tool_is_refused_when_its_agent_is_made() -> None:
    for function, reason in (
        (yields, "it is a generator, "),
        (counts, "it is a generator, "),
        (Plain(), "it is a generator, "),
        (typed(takes=Plain), f"its parameter what has the type {__name__}.Plain, which has no "),
        (typed(takes=Callable[[], int]), "its parameter what has the type collections.abc.Call"),
        (typed(gives=Plain), f"its result has the type {__name__}.Plain, which has no JSON schema"),
        (typed(gives=Callable[[], int]), "its result has the type collections.abc.Callable"),
        (typed(gives="Nowhere"), "name 'Nowhere' is not defined"),
        (takes_all, "its parameter *n: int cannot be passed by name"),
        (takes_first, "its parameter n: int cannot be passed by name"),
        (untyped, "its parameter n has no type, and the model would guess; write n: str, or Any"),
        (Plain, "it is a class; give a function, or a method of an instance"),
    ):
        name = getattr(function, "__name__", type(function).__name__)
        with pytest.raises(ConfigError) as caught:
            Agent("a", tools=[function, sync_double, sync_double], mock_responses=["{}"])
        first, second = caught.value.problems
        assert re.match(rf"{re.escape(name)} at \S+ cannot be a tool: {re.escape(reason)}", first)
        assert second.startswith("two functions are called sync_double; rename the one at ")


def not_awaited(n: int) -> Any:
    return async_double(n)


def picture() -> Image:
    return Image(data=b"x", format="png")


def paid() -> int:
    return "paid"  # type: ignore[return-value]


async def test_what_a_function_returns_is_its_result() -> None:
    for function, arguments, expected in (
        (not_awaited, {"n": 4}, CallOutput("8")),
        (picture, {}, CallOutput("[image/png, 1 bytes]")),
        (
            paid,
            {},
            CallOutput(
                "paid\n\n[Note: it does not match the function's return type.]", {"result": "paid"}
            ),
        ),
    ):
        async with connected(ToolServerConfig("f", functions=(function,))) as tools:
            assert await tools.call(tools.snapshot()[0][0], arguments, unheard) == expected


# What the manifest says


async def test_only_allowed_tools_are_offered_and_called() -> None:
    server = ToolServerConfig(
        "f", functions=(sync_double, async_double, divide), allow=("*_double",)
    )
    async with connected(server) as tools:
        assert [tool.name for tool in tools.snapshot()[0]] == ["sync_double", "async_double"]
        with ends_as("refused", "divide is not allowed on tool server f"):
            await tools.call(Tool("f", "divide", "", {}), {"n": 1}, unheard)


async def test_a_call_to_a_server_that_is_not_there_any_more_is_unavailable() -> None:
    async with connected() as tools:
        with ends_as("unavailable", "tool server gone no longer exists"):
            await tools.call(Tool("gone", "t", "", {}), {}, unheard)


def test_overrides_win_over_annotations_and_the_first_that_speaks_decides() -> None:
    hints = mcp_types.ToolAnnotations(
        read_only_hint=True, idempotent_hint=True, destructive_hint=False
    )
    pay, look = (
        mcp_types.Tool(name=name, input_schema={}, annotations=hints) for name in ("pay", "look")
    )
    server = ToolServerConfig(
        "bank",
        url="http://bank/mcp",
        timeout=7,
        overrides=(
            OverrideConfig("pay*", read_only=False, sequential=True),
            OverrideConfig("*", read_only=True, idempotent=False, terminal=True, timeout=3),
        ),
    )
    assert catalog_tools(server, [pay, look]) == (
        Tool("bank", "pay", "", {}, sequential=True, terminal=True, destructive=False),
        Tool("bank", "look", "", {}, read_only=True, terminal=True, destructive=False),
    )
    assert timeout_of(server, "pay") == 3
    assert timeout_of(ToolServerConfig("s", url="http://s", timeout=7), "pay") == 7


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({"url": "http://a", "command": ("a",)}, id="two ways to it"),
        pytest.param({"url": "http://a", "timeout": 0}, id="no time"),
    ],
)
def test_a_server_that_is_configured_wrongly_is_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="tool server s: "):
        ToolServerConfig("s", **wrong)


# Commands


def tally(folder: Path, **options: Any) -> ToolServerConfig:
    command = (sys.executable, str(TALLY), "stdio", str(folder / "tally"))
    return ToolServerConfig("tally", command=command, **options)


async def test_a_command_gets_nothing_of_our_environment_but_what_programs_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = {"PATH": os.environ["PATH"], "HOME": "/h", "LANG": "C.UTF-8", "TMPDIR": str(tmp_path)}
    for name, value in {**kept, "USER": "ada", "SSH_AUTH_SOCK": "/s", "API_KEY": "canary"}.items():
        monkeypatch.setenv(name, value)
    seen = tmp_path / "seen"
    program = f"open({str(seen)!r}, 'w').write(repr(dict(os.environ)))"
    async with connected(exiting(program, env={"GIVEN": "a"})):
        variables = ast.literal_eval(seen.read_text())
    variables.pop("LC_CTYPE", None)  # which Python sets for itself
    assert variables == {**kept, "GIVEN": "a"}


async def test_a_command_that_cannot_be_started_is_the_reason() -> None:
    for program, reason in (
        ("no-such-program", "no program no-such-program on PATH"),
        ("/no/such/program", "no program /no/such/program"),
        (__file__, f"{__file__} is not executable"),
    ):
        async with connected(ToolServerConfig("x", command=(program,))) as tools:
            assert reasons(tools) == {"x": reason}


@pytest.mark.skipif(sys.platform != "linux", reason="the launcher is Linux's")
async def test_a_script_without_its_interpreter_is_the_reason(tmp_path: Path) -> None:
    script = tmp_path / "tool"
    script.write_text("#!/no/such/python\n")
    script.chmod(0o755)
    async with connected(ToolServerConfig("x", command=(str(script),))) as tools:
        why = f"the interpreter of {script} does not exist"
        assert reasons(tools) == {"x": f"exited with code 127: {why}"}


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's own means")
async def test_a_command_dies_with_the_agent_that_is_killed(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    # It ignores the end of its input, and every signal that can be ignored.
    child = f"""
import os, signal, time
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE): signal.signal(number, signal.SIG_IGN)
open({str(file)!r}, "w").write(str(os.getpid()))
while True: time.sleep(1)
"""
    agent = f"""
import asyncio, sys
from diptych.mcp import ConnectionSettings, McpTools
from diptych.manifest.settings import ToolServerConfig
async def main():
    async with McpTools([ToolServerConfig("x", command=(sys.executable, "-c", {child!r}))]):
        await asyncio.sleep(60)
asyncio.run(main())
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", agent)
    await until(lambda: file.exists() and file.read_text())
    pid = file.read_text()
    assert is_alive(pid)
    process.kill()
    await process.wait()
    await until(lambda: not is_alive(pid))


def is_alive(pid: str) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


async def test_a_command_that_dies_in_a_call_is_started_again_and_killed_at_the_end_if_it_hangs(
    tmp_path: Path,
) -> None:
    before = children()
    async with connected(tally(tmp_path)) as tools:
        with ends_as("unknown", "exited with code 3"):
            await tools.call(await tool_of(tools, "tally__die"), {}, unheard)
        assert reasons(tools) == {"tally": "exited with code 3: noise"}
        add_line = Tool("tally", "add_line", "", {})
        assert (await tools.call(add_line, {"text": "back"}, unheard)).text == "wrote back"
        call = asyncio.create_task(tools.call(await tool_of(tools, "tally__hang"), {}, unheard))
        await asyncio.sleep(0.05)
        assert len(children() - before) == 1
    with ends_as("unknown", "closed"):
        await call
    assert children() <= before
    assert (tmp_path / "tally").read_text().splitlines() == ["dying", "back"]


def exiting(program: str, **options: Any) -> ToolServerConfig:
    return ToolServerConfig(
        "x", command=(sys.executable, "-c", f"import os, sys; {program}"), **options
    )


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (
            "sys.stderr.write('0\\na\\nb\\n\\nc\\nd'); sys.exit(4)",
            "exited with code 4: a | b | c | d",
        ),
        (
            "sys.exit('\\x1b[31mred\\x1b[0m \\x00\\x07\\u202e|\\r\\tend')",
            "exited with code 1: red | end",
        ),
        (
            "os.write(2, b'\\xff'); sys.exit('x' * 1_000_000)",
            f"exited with code 1: \ufffd{'x' * 198}…",
        ),
        (
            "sys.exit(os.environ['KEY'] + ' is no key')",
            "exited with code 1: [redacted] [redacted] | is no key",
        ),
    ],
    ids=["last lines", "control characters", "long and no text", "secret"],
)
async def test_a_command_that_exits_says_why_in_its_own_last_words(
    program: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = exiting(program, env={"KEY": lambda: "s3cretive password\n"})
    async with connected(server) as tools:
        assert reasons(tools) == {"x": reason}
    assert f"tool server x is unavailable: {reason}" in caplog.text


def children() -> set[str]:
    """Give the pids of this process's children."""
    return {
        path.parent.name
        for path in Path("/proc").glob("[0-9]*/stat")
        if _parent_of(path) == str(os.getpid())
    }


def _parent_of(stat: Path) -> str:
    try:
        return stat.read_text().rpartition(")")[2].split()[1]
    except OSError:
        return ""
