"""How many bytes of each request a prompt cache could have kept: those that it shares, from its
beginning, with the request before it, or with any earlier one of the session.

Bytes are those of the messages as text, one after another, as a chat template writes them. Nothing
is asked of a model: runs are played, with results of the size that is named.
"""

import itertools

from bench.models.stage import NONCE, begin
from bench.models.stories import CATALOGS
from bench.report import table
from diptych.core.events import Offered, RunRequested
from diptych.core.messages import Message, Result
from diptych.core.model_request import ModelRequest
from diptych.core.prompt import system_prompt
from diptych.core.state import conversation

CALL = '{{"tool": "calculator", "arguments": {{"expression": "{} + 2"}}}}'
WRONG = '{"tool": "no_such_tool", "arguments": {}}'
ANSWER = "It is known by now, and this is the answer to it. " * 8
SIZES = (80, 2_000, 20_000)  # of a result, in characters
RUNS = {
    "no call": ("{}", ANSWER),
    "one call": (CALL.format(1), "{}", ANSWER),
    "four calls": (*map(CALL.format, range(4)), "{}", ANSWER),
    "an error, one call": (WRONG, CALL.format(1), "{}", ANSWER),
}
TURNS = 3


def measure() -> tuple[str, bool]:
    """Give a table: for each run and size of a result, bytes sent and what no cache has."""
    rows = []
    for name, script in RUNS.items():
        for size in SIZES if "call" in name and name != "no call" else SIZES[:1]:
            sent, after_last, after_any = _counted(script, size)
            rows.append([name, f"{size:,}", *(f"{n:,}" for n in (sent, after_last, after_any))])
    head = [f"{TURNS} turns, each", "result", "bytes sent", "not in the last", "not in any"]
    return table(head, rows), True


def _counted(script: tuple[str, ...], size: int) -> tuple[int, int, int]:
    texts = [*map(_text, _requests(script, size))]
    sent = after_last = after_any = 0
    for n, text in enumerate(texts):
        shared = [_shared(text, earlier) for earlier in texts[:n]]
        sent += len(text)
        after_last += len(text) - (shared[-1] if shared else 0)
        after_any += len(text) - max(shared, default=0)
    return sent, after_last, after_any


def _requests(script: tuple[str, ...], size: int) -> list[ModelRequest]:
    catalog = CATALOGS["tools and agents"]
    offered = Offered(catalog, system_prompt("You are careful. " * 60, catalog), nonce=NONCE)
    history: tuple[Message, ...] = ()
    requests: list[ModelRequest] = []
    for turn in range(TURNS):
        text = (f"{turn}: all that was found. " * size)[:size]
        asked = RunRequested(f"Question {turn}: what is it?")
        stage = begin(asked, offered, lambda call, text=text: Result(call.id, text), history)
        for said in script:
            stage.say(said)
        requests += stage.requests
        history = conversation(stage.run)
    return requests


def _text(request: ModelRequest) -> str:
    return "".join(f"<{message.role}>{message.content}\n" for message in request.messages)


def _shared(text: str, other: str) -> int:
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(text, other, strict=False))
    return sum(1 for _ in same)
