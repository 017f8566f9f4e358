"""Models that think and call natively, through the whole stack: what they want back they get.

DeepSeek and Moonshot want the reasoning of a reply back beside its calls, Gemini its signature.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from support.model_server import Exchange, model_server, usage
from support.stack import box, stage

from diptych.core.run_settings import RunSettings

pytestmark = pytest.mark.asyncio

NATIVE = RunSettings(action_format="native")
DIRECT = replace(NATIVE, answer_mode="direct")
SIGNATURE = {"google": {"thought_signature": "Ej/8w=="}}
REFUSED = "The `reasoning_content` in the thinking mode must be passed back to the API."
UNSIGNED = "Function call is missing a `thought_signature` in functionCall parts."


async def echo(text: str) -> str:
    """Say a text again."""
    return f"echo: {text}"


class Thinker:
    """A model that thinks, calls `echo` so many times in each run, and answers.

    It refuses requests with `tools` where the reasoning of some reply is missing, or the signature
    of some call, if it `wants` them.
    """

    def __init__(self, *, wants: str, calls: int = 2) -> None:
        self.wants, self.calls = wants, calls
        self.requests: list[dict[str, Any]] = []
        self.refused = 0

    async def __call__(self, exchange: Exchange) -> web.StreamResponse:
        body = dict(exchange.body)
        words = self._missing(body["messages"]) if "tools" in body else None
        if words:
            self.refused += 1
            return web.json_response({"error": {"message": words}}, status=400)
        self.requests.append(body)
        done = self._results(body["messages"])
        if "tools" in body and done < self.calls:
            return await self._call(exchange, done + 1)
        return await exchange.say("It is x.")

    def asking(self) -> list[list[dict[str, Any]]]:
        """The messages with calls in each request that was taken."""
        return [[m for m in r["messages"] if m.get("tool_calls")] for r in self.requests]

    def _missing(self, messages: list[dict[str, Any]]) -> str | None:
        for message in messages:
            said = message["role"] == "assistant"
            if self.wants == "reasoning" and said and "reasoning_content" not in message:
                return REFUSED
            calls = message.get("tool_calls", [{"extra_content": SIGNATURE}])
            if self.wants == "signature" and "extra_content" not in calls[0]:
                return UNSIGNED
        return None

    def _results(self, messages: list[dict[str, Any]]) -> int:
        place = max(n for n, m in enumerate(messages) if m["role"] == "user")
        return sum(m["role"] == "tool" for m in messages[place:])

    async def _call(self, exchange: Exchange, number: int) -> web.StreamResponse:
        function = {"name": "echo", "arguments": json.dumps({"text": f"x{number}"})}
        call = {"id": f"c{number}", "index": 0, "type": "function", "function": function}
        if self.wants == "signature":
            call["extra_content"] = SIGNATURE
        pieces = [{"reasoning_content": "I "}, {"reasoning_content": f"think {number}."}]
        if not exchange.body["stream"]:
            message = {"role": "assistant", "content": None, "tool_calls": [call]}
            message["reasoning_content"] = "".join(p["reasoning_content"] for p in pieces)
            choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
            return web.json_response({"choices": [choice], "usage": usage("x")})
        stream = await exchange.open()
        for delta in (*pieces, {"tool_calls": [call]}, {}):
            end = None if delta else "tool_calls"
            chunk = {"choices": [{"index": 0, "delta": delta, "finish_reason": end}]}
            await stream.write(b"data: %b\n\n" % json.dumps(chunk).encode())
        await stream.write(b"data: [DONE]\n\n")
        return stream


def thoughts(asking: list[dict[str, Any]]) -> Iterator[str | None]:
    return (message.get("reasoning_content") for message in asking)


@pytest.mark.parametrize("loop", [NATIVE, DIRECT], ids=["separate", "direct"])
async def test_reasoning_goes_back_beside_the_calls_that_it_led_to(loop: RunSettings) -> None:
    thinker = Thinker(wants="reasoning")
    async with (
        model_server(thinker) as model,
        stage(model=model, tools=(box(echo),), loop=loop) as helper,
    ):
        first = await helper.ended(await helper.start("one", session_id="s"))
        second = await helper.ended(await helper.start("two", session_id="s"))
    assert (first["status"], second["status"]) == ("completed", "completed")
    assert thinker.refused == 1  # the endpoint is asked as it wants from then on
    asking = thinker.asking()
    with_tools = [r for r, body in zip(asking, thinker.requests, strict=True) if "tools" in body]
    assert [*thoughts(with_tools[-1])] == ["I think 1.", "I think 2."] * 2


@pytest.mark.parametrize("loop", [NATIVE, DIRECT], ids=["separate", "direct"])
async def test_a_signature_goes_back_as_it_came(loop: RunSettings) -> None:
    thinker = Thinker(wants="signature")
    async with (
        model_server(thinker) as model,
        stage(model=model, tools=(box(echo),), loop=loop) as helper,
    ):
        assert (await helper.ended(await helper.start("one")))["status"] == "completed"
    assert thinker.refused == 0
    asking = [m for request in thinker.asking() for m in request]
    assert {json.dumps(m["tool_calls"][0].get("extra_content")) for m in asking} == {
        json.dumps(SIGNATURE)
    }
