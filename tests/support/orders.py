"""Work that can be counted: a model that takes orders, and the tools that it calls.

Each run charges once (never to be repeated), looks once (read-only), and answers at length; what
it answers follows from its question alone.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web
from support.history import Event
from support.model_server import Exchange, ModelServer, _data, model_server

CHARGES = Path(__file__).parent.parent / "chaos" / "servers" / "charges.py"
WORDS = 40  # of an answer


@dataclass(frozen=True, slots=True)
class Pace:
    """How slow the model is: seconds before a reply, and between two words of an answer."""

    reply: float = 0.3
    word: float = 0.05


def answer(key: str) -> str:
    """Give the answer to an order."""
    return " ".join([f"order {key}:", *(f"{key}.{n}" for n in range(WORDS))])


@asynccontextmanager
async def order_model(pace: Pace | None = None) -> AsyncIterator[ModelServer]:
    """Serve the model."""
    pace = pace or Pace()

    async def take(exchange: Exchange) -> web.StreamResponse:
        messages = exchange.body["messages"]
        key = next(m["content"] for m in messages if m["role"] == "user").partition("\n")[0]
        await asyncio.sleep(pace.reply)
        if not exchange.is_phase_2:
            asked = ("charge", "look", None)[sum(m["role"] == "assistant" for m in messages)]
            call = {"tool": asked, "arguments": {"key": key}} if asked else {}
            return await exchange.say(json.dumps(call))
        return await say_slowly(exchange, answer(key), pace.word)

    async with model_server(take) as server:
        yield server


async def say_slowly(exchange: Exchange, text: str, pace: float) -> web.StreamResponse:
    """Stream a text a word at a time."""
    stream = await exchange.open()
    for n, word in enumerate(text.split(" ")):
        await stream.write(_data({"content": f" {word}" if n else word}))
        await asyncio.sleep(pace)
    await stream.write(_data({}, "stop"))
    await stream.write(b"data: [DONE]\n\n")
    return stream


class Charges:
    """The tools' server, and what it has noted."""

    def __init__(self, port: int, path: Path) -> None:
        self.url = f"http://127.0.0.1:{port}/mcp"
        self._path = path
        self._first = 0  # line that is told of

    def begin_anew(self) -> None:
        """Tell no more of what was before: the server serves many tests, and some are run again."""
        self._first = len(self._lines())

    def history(self) -> list[Event]:
        """Give each start of a tool up to now."""
        return [json.loads(line) for line in self._lines()[self._first :]]

    def _lines(self) -> list[str]:
        return self._path.read_text().splitlines() if self._path.exists() else []


@contextmanager
def charges() -> Iterator[Charges]:
    """Run the tools' server as a process of its own."""
    with tempfile.TemporaryDirectory(prefix="charges-") as folder:
        path = Path(folder) / "history"
        command = [sys.executable, str(CHARGES), str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout
            try:
                yield Charges(int(process.stdout.readline()), path)
            finally:
                process.kill()


def order_agent(model: ModelServer, tools: Charges) -> dict[str, Any]:
    """Give the environment of an agent that takes orders."""
    return {
        "MODEL_API_URL": model.url,
        "MODEL_NAME": "m",
        "MCP_SERVERS": "box",
        "MCP_SERVER_BOX_URL": tools.url,
    }
