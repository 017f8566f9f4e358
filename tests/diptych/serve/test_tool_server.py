"""`diptych mcp-server` in processes of its own, asked in both eras of the protocol."""

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import Client, MCPError
from support.command_line import PATIENCE

from diptych.cli.commands.mcp_server import mcp_server, of_file
from diptych.core.errors import ConfigError
from diptych.manifest.settings import ToolServerConfig
from diptych.mcp import McpTools
from diptych.mcp.functions import function_server

SERVERS = Path(__file__).parent / "servers"
OF_FILE = ("--python", str(SERVERS / "calc.py"))
OF_COMMAND = ("--", sys.executable, str(SERVERS / "stdio_calc.py"))
ERAS = ("legacy", "2026-07-28")


@dataclass(frozen=True, slots=True)
class Served:
    process: asyncio.subprocess.Process
    url: str
    log: Path

    async def ready(self) -> tuple[int, dict[str, Any]]:
        async with httpx.AsyncClient() as http:
            answer = await http.get(self.url.replace("/mcp", "/ready"))
        return answer.status_code, answer.json()

    async def until_ready(self) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE):
            while (now := await self.ready())[0] != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        return now[1]

    async def until_logged(self, *words: str) -> list[str]:
        """Wait until the log has these words, in any order."""
        async with asyncio.timeout(PATIENCE):
            while not (  # noqa: ASYNC110
                self.log.exists() and set(words) <= set(self.log.read_text().split())
            ):
                await asyncio.sleep(0.02)
        return self.log.read_text().splitlines()


@asynccontextmanager
async def served(folder: Path, *words: str) -> AsyncIterator[Served]:
    log = folder / "log"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "diptych", "mcp-server", "--port", "0", *words),
        env=os.environ | {"LOG": str(log)},
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stderr
        async with asyncio.timeout(PATIENCE):
            line = (await process.stderr.readline()).decode()
        url = re.search(r"http://\S+", line)
        assert url, line
        yield Served(process, url[0], log)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.parametrize("source", [OF_FILE, OF_COMMAND], ids=["file", "command"])
async def test_tools_are_listed_called_and_cancelled(
    source: tuple[str, ...], tmp_path: Path
) -> None:
    async with served(tmp_path, *source) as there:
        ready = await there.until_ready()
        for era in ERAS:
            async with Client(there.url, mode=era) as client:
                listed = {tool.name: tool for tool in (await client.list_tools()).tools}
                added = await client.call_tool("add", {"a": 1, "b": 2})
                failed = await client.call_tool("fail", {})
                call = asyncio.create_task(client.call_tool("wait", {"seconds": 60}))
                await there.until_logged("waiting")
                call.cancel()
                await there.until_logged("cancelled")
                there.log.unlink()
            assert {"add", "fail", "wait"} <= set(listed)
            assert listed["add"].description == "Add two numbers."
            assert listed["add"].annotations
            assert listed["add"].annotations.read_only_hint
            assert added.structured_content == {"result": 3}
            assert failed.is_error
            assert "no such planet" in failed.content[0].text
        is_command = source is OF_COMMAND
        about = {"name": "stdio-calc", "version": "1.2"} if is_command else {"name": "tools"}
        assert about.items() <= ready["serverInfo"].items()
        if is_command:
            await check_digests(there, ready)
            for era in ERAS:
                await check_progress_and_protocol_errors(there, era)


async def check_digests(there: Served, ready: dict[str, Any]) -> None:
    """An agent pins the digests that `/ready` has."""
    async with McpTools([ToolServerConfig("calc", url=there.url)]) as tools:
        await tools.wait_for_first_attempt(PATIENCE)
        pinned = tools.digests()["calc"]
    assert {tool["name"]: tool["digest"] for tool in ready["tools"]} == pinned
    assert len(pinned) == 6


async def check_progress_and_protocol_errors(there: Served, era: str) -> None:
    seen = []

    async def on_progress(*report: Any) -> None:
        seen.append(report)

    async with Client(there.url, mode=era) as client:
        await client.call_tool("count", {}, progress_callback=on_progress)
        with pytest.raises(MCPError, match="not today") as caught:
            await client.call_tool("refuse", {})
    assert seen == [(1, 2, "half"), (2, 2, None)]
    assert caught.value.code == -32042


async def test_a_command_that_dies_is_started_again_and_at_a_signal_no_child_stays(
    tmp_path: Path,
) -> None:
    async with served(tmp_path, *OF_COMMAND) as there:
        await there.until_ready()
        async with Client(there.url) as client:
            waiting = asyncio.create_task(client.call_tool("wait", {"seconds": 60}))
            await there.until_logged("waiting")
            with pytest.raises(MCPError, match=r"outcome: unknown.* exited with code 3"):
                await client.call_tool("die", {})
            with pytest.raises(MCPError, match="outcome: unknown"):
                await waiting
            assert not (await client.call_tool("add", {"a": 1, "b": 2})).is_error
        [_, started] = [line for line in there.log.read_text().splitlines() if "started" in line]
        there.log.unlink()
        async with Client(there.url, mode="legacy") as client:  # its stream stays open
            await client.list_tools()  # else the client asks for them after the call
            call = asyncio.create_task(client.call_tool("wait", {"seconds": 1}))
            await there.until_logged("waiting")
            there.process.terminate()
            assert not (await call).is_error
            assert await asyncio.wait_for(there.process.wait(), PATIENCE) == 0
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.split()[1]), 0)


async def test_a_file_with_a_mistake_is_served_as_the_reason(tmp_path: Path) -> None:
    file = tmp_path / "tools.py"
    file.write_text("x = = 1")
    async with served(tmp_path, "--python", str(file)) as there:
        async with asyncio.timeout(PATIENCE):
            while (now := await there.ready())[1]["reason"] == "is starting":  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert there.process.stderr
        line = (await there.process.stderr.readline()).decode()
        async with httpx.AsyncClient() as http:
            assert (await http.post(there.url, json={})).status_code == 503
    reason = "tools.py: line 1, column 5: invalid syntax"
    assert now == (503, {"status": "not ready", "reason": reason})
    assert reason in line


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param(
            "x = 1\ndef f(): return missing\ny = f()\n",
            "tools.py: line 2, column 17: NameError: name 'missing' is not defined",
            id="no import",
        ),
        pytest.param("import sys\nsys.exit(3)", "tools.py: line 2, column 1: SystemExit: 3"),
        pytest.param("x = 1 + \\", "tools.py: line 1, column 10: unexpected EOF", id="syntax"),
        pytest.param("\0", "tools.py: ", id="no text"),
        pytest.param(
            "from json import dumps\nimport re\ndef _f() -> None: ...",
            "tools.py: has no function whose name does not begin with _",
            id="no function",
        ),
        pytest.param(
            "def f(a): ...",
            r"f at \S+/tools.py:1 cannot be a tool: its parameter a has no type",
            id="untyped",
        ),
        pytest.param(
            "from diptych import tool\n@tool(ask='why')\ndef f() -> None: ...",
            "tools.py: MCP cannot carry the marks ask, sequential and terminal",
            id="mark",
        ),
    ],
)
def test_a_file_that_cannot_be_served_names_the_place(
    text: str, problem: str, tmp_path: Path
) -> None:
    file = tmp_path / "tools.py"
    file.write_text(text)
    with pytest.raises(ConfigError, match=problem):
        function_server(of_file(file, ()))


def test_a_missing_package_is_named_before_the_file_is_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="package no-such-package is not installed; use an"):
        of_file(tmp_path / "not-there.py", ("pydantic", "no-such-package"))


async def test_a_command_line_that_says_nothing_to_serve_is_refused() -> None:
    for given in ({}, {"python": Path("a.py"), "command": ["b"]}):
        with pytest.raises(ConfigError, match="give --python FILE, or a command after --"):
            await mcp_server(**given)
    with pytest.raises(ConfigError, match="--path /ready: must begin with /"):
        await mcp_server(["b"], path="/ready")
