"""Server-sent events: read to the letter of the standard, however the bytes are cut."""

from itertools import pairwise

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diptych.net.sse import SseEvent, SseParser, SseTooLong, frame

STREAM = (
    b'\xef\xbb\xbf: hello\r\nevent: x\r\ndata: {"a":\r\ndata:1}\r\nid: 7\r\n\r\n'
    b"data:no space\n\n\n"
    b": keep-alive\n\n"
    b"data\n\n"
    b"retry: 10\rdata:  two spaces\r\r"
    b"data: gr\xc3\xbc\xc3\x9fe \xf0\x9f\x98\x80\n\n"
    b"id\ndata: after an empty id\n\n"
    b"data: [DONE]\n\n"
)
EVENTS = [
    ("x", b'{"a":\n1}', "7"),
    ("message", b"no space", "7"),
    ("message", b"", "7"),
    ("message", b" two spaces", "7"),
    ("message", "grüße 😀".encode(), "7"),
    ("message", b"after an empty id", ""),
    ("message", b"[DONE]", ""),
]


def read(*chunks: bytes, last_id: str = "") -> list[SseEvent]:
    parser = SseParser(last_id)
    return [event for chunk in chunks for event in parser.feed(chunk)]


@pytest.mark.parametrize(
    ("text", "events"),
    [
        pytest.param(
            b"data: x\n\n\xef\xbb\xbfdata: y\n\n",
            [("message", b"x", "")],
            id="a byte order mark that is not first",
        ),
        pytest.param(
            b"data: x\ndata\ndata: y\n\n", [("message", b"x\n\ny", "")], id="lines of data"
        ),
        pytest.param(
            b"id: 3\n\ndata: y\n\n", [("message", b"y", "3")], id="an id comes without data, too"
        ),
        pytest.param(b"id: 3\0\ndata: x\n\n", [("message", b"x", "")], id="no id holds a NUL"),
        pytest.param(
            b"event: a\n\ndata: x\n\n", [("message", b"x", "")], id="a name does not stay"
        ),
        pytest.param(b"data: x\n", [], id="an event that has not ended"),
    ],
)
def test_events_are_read_by_the_standard(text: bytes, events: list[SseEvent]) -> None:
    assert read(text) == events


@settings(deadline=None)  # on a loaded machine
@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_it_does_not_matter_where_the_bytes_are_cut(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    assert read(*(STREAM[a:b] for a, b in pairwise(edges))) == EVENTS


def test_an_event_is_given_as_soon_as_its_blank_line_is_there() -> None:
    parser = SseParser()
    assert parser.feed(b"data: 1\n") == []
    assert parser.feed(b"\n") == [("message", b"1", "")]
    assert parser.feed(b"data: 2\r\n\r") == [("message", b"2", "")]
    assert parser.feed(b"") == []
    assert parser.feed(b"\ndata: 3\r\n\r\n") == [("message", b"3", "")]


@pytest.mark.parametrize(
    ("rest", "data"),
    [
        pytest.param(b": comment", [], id="a comment is left"),
        pytest.param(b"data: [DONE]\n", [b"[DONE]"], id="the blank line is missing"),
        pytest.param(b"data: 1\ndata: 2\r", [b"1\n2"], id="two lines and half a CRLF"),
    ],
)
def test_the_event_that_a_stream_ended_in_can_be_had(rest: bytes, data: list[bytes]) -> None:
    parser = SseParser()
    parser.feed(b"data: 0\n\n" + rest)
    assert [event[1] for event in parser.finish()] == data


@pytest.mark.parametrize(
    "chunks",
    [
        pytest.param([b"data: 1234567", b"89"], id="a line without an end"),
        pytest.param([b"data: 1\n\ndata: 123456789012345\n\n"], id="the second event"),
        pytest.param([b"data\n"] * 3, id="empty lines of one event"),
    ],
)
def test_what_is_too_long_is_refused(chunks: list[bytes]) -> None:
    parser = SseParser(limit=14)
    for chunk in chunks[:-1]:
        assert parser.feed(chunk) == []
    with pytest.raises(SseTooLong):
        parser.feed(chunks[-1])


@given(st.text(), st.integers(0, 10**9))
def test_what_is_framed_is_read_again(text: str, seq: int) -> None:
    (event,) = read(frame({"text": text}, event="text", seq=seq))
    assert event == ("text", orjson.dumps({"text": text}), str(seq))
