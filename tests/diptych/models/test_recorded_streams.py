"""Streams that a real server sent, cut at every byte and parted in every way: all, or an error.

`tests/recorded/model` has the bytes. Calls are written into them as real servers write theirs.
"""

import itertools
from pathlib import Path
from types import SimpleNamespace

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diptych.models.failures import AttemptFailure
from diptych.models.reply_reader import ReplyReader
from diptych.net.received import Received
from diptych.ports import Delta

RECORDED = Path(__file__).parents[2] / "recorded" / "model" / "streams"
CALLS = (
    {"index": 0, "id": "c1", "type": "function", "function": {"name": "add", "arguments": ""}},
    {"index": 0, "function": {"arguments": '{"a": "é'}},
    {"index": 0, "function": {"arguments": '🎈", "b": 2}'}},
    {"index": 1, "id": "c2", "type": "function", "function": {"name": "add", "arguments": "{}"}},
)


def events_of(body: bytes) -> list[bytes]:
    return [event + b"\n\n" for event in body.split(b"\n\n") if event]


def with_calls(body: bytes) -> bytes:
    """Let calls follow the text of a stream, which ends with its finish, usage and `[DONE]`."""
    *text, finish, usage, done = events_of(body)
    chunk = orjson.loads(text[1].removeprefix(b"data: "))
    for call in CALLS:
        chunk["choices"][0]["delta"] = {"tool_calls": [call]}
        text.append(b"data: " + orjson.dumps(chunk) + b"\n\n")
    return b"".join((*text, finish.replace(b'"length"', b'"tool_calls"'), usage, done))


REAL = {path.stem: path.read_bytes() for path in sorted(RECORDED.glob("*.sse"))}
STREAMS = {**REAL, "calls": with_calls(REAL["answer"])}
by_name = pytest.mark.parametrize("name", STREAMS)


class Body:
    """A response body that arrives in these pieces, and then ends."""

    response = SimpleNamespace(content_type="text/event-stream")
    idle = 1.0

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = iter(pieces)

    async def read(self) -> bytes:
        return next(self.pieces, b"")

    async def read_all(self, received: Received, first: bytes) -> bytes:
        del received
        return b"".join((first, *self.pieces))


def read(*pieces: bytes) -> Delta:
    """Read a stream to its end, as one delta. Raises `AttemptFailure`."""
    reader = ReplyReader(Body(*filter(None, pieces)), frozenset({"add"}), ())  # type: ignore[arg-type]
    text = reasoning = ""
    while True:
        reading = reader.next()
        try:
            reading.send(None)  # nothing in it waits
        except StopIteration as end:
            delta: Delta = end.value
        text, reasoning = text + delta.text, reasoning + delta.reasoning
        if delta.finish_reason:
            return Delta(text, reasoning, delta.usage, delta.finish_reason, delta.calls)


@by_name
def test_cut_at_any_byte_a_stream_is_an_error_or_whole(name: str) -> None:
    body = STREAMS[name]
    whole = read(body)
    finish = body.index(b'"finish_reason":"')
    for size in range(len(body)):
        found = outcome(body[:size])
        if isinstance(found, str):
            assert found in {"model_cut", "model_failed"}
            continue
        assert size > finish
        assert (found.text, found.reasoning, found.calls, found.finish_reason) == (
            *(whole.text, whole.reasoning, whole.calls, whole.finish_reason),
        )
        assert found.usage in {None, whole.usage}


@by_name
def test_byte_by_byte_a_stream_means_the_same(name: str) -> None:
    body = STREAMS[name]
    assert read(*(body[n : n + 1] for n in range(len(body)))) == read(body)


ERRORS = (
    b'data: {"error": {"message": "out of memory", "code": 500}}\n\n',
    b'event: error\ndata: {"message": "out of memory"}\n\n',
    b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "error"}]}\n\n',
    b'data: {"choices": [{"index": 0, "delta": {"content": "\n\n',
)


@by_name
@pytest.mark.parametrize("error", ERRORS)
def test_an_error_at_any_place_before_the_finish_is_an_error(name: str, error: bytes) -> None:
    events = events_of(STREAMS[name])
    for place in range(len(events) - 2):
        broken = [*events[:place], error, *events[place:]]
        with pytest.raises(AttemptFailure):
            read(b"".join(broken))


@settings(deadline=None)
@given(
    st.sampled_from(sorted(STREAMS)),
    st.lists(st.integers(0, 10_000), max_size=6),
    st.lists(st.tuples(st.integers(0, 10_000), st.binary(max_size=6)), min_size=1, max_size=3),
)
def test_a_damaged_stream_is_read_or_refused_however_it_comes(
    name: str, cuts: list[int], damage: list[tuple[int, bytes]]
) -> None:
    body = bytearray(STREAMS[name])
    for place, put in damage:
        body[place % len(body) : place % len(body) + len(put)] = put
    places = sorted({0, len(body), *(cut % len(body) for cut in cuts)})
    pieces = [bytes(body[a:b]) for a, b in itertools.pairwise(places)]
    assert outcome(bytes(body)) == outcome(*pieces)


def outcome(*pieces: bytes) -> Delta | str:
    try:
        return read(*pieces)
    except AttemptFailure as failure:
        return failure.code


def call_event(**call: object) -> bytes:
    delta = {"tool_calls": [call]}
    return b"data: " + orjson.dumps({"choices": [{"index": 0, "delta": delta}]}) + b"\n\n"


LONG = "x" * 2**15


@pytest.mark.parametrize(
    "events",
    [
        [call_event(index=0, function={"name": "add", "arguments": LONG})] * 300,
        [call_event(index=n, function={"name": "add", "arguments": [LONG]}) for n in range(300)],
        [
            b"".join(call_event(index=n, name="c") for n in range(first, first + 250))
            for first in range(0, 9_000, 250)
        ],
    ],
    ids=["one call", "values", "empty calls"],
)
def test_the_calls_of_a_reply_count_towards_its_size(events: list[bytes]) -> None:
    """A model that writes calls for ever takes no more memory than one that writes text."""
    with pytest.raises(AttemptFailure, match="more than 8388608 characters"):
        read(*events)


@pytest.mark.parametrize("filler", [b": waits\n\n", b"\n\n", b"retry: 1\n\n"])
def test_comments_and_blanks_may_come_before_the_first_event(filler: bytes) -> None:
    pieces = [filler * (2**16 // len(filler))] * 20
    assert read(*pieces, REAL["answer"]) == read(REAL["answer"])
