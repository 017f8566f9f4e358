"""The reader of server-sent events: the same events, however the bytes are cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych.net.sse_parser import SseReader, SseTooLong

STREAM = (
    b'\xef\xbb\xbf: hello\r\nevent: x\r\ndata: {"a":\r\ndata:1}\r\nid: 7\r\n\r\n'
    b"data:no space\n\n\n"
    b": keep-alive\n\n"
    b"data\n\n"
    b"retry: 10\rdata:  two spaces\r\r"
    b"data: gr\xc3\xbc\xc3\x9fe \xf0\x9f\x98\x80\n\n"
    b"data: [DONE]\n\n"
)
EVENTS = [
    b'{"a":\n1}',
    b"no space",
    b" two spaces",
    "grüße 😀".encode(),
    b"[DONE]",
]


def read(*chunks: bytes) -> list[bytes]:
    reader = SseReader()
    return [event for chunk in chunks for event in reader.feed(chunk)]


def test_a_stream_that_arrives_at_once_is_read_whole() -> None:
    assert read(STREAM) == EVENTS


def test_a_stream_that_arrives_byte_by_byte_is_read_the_same() -> None:
    assert read(*(STREAM[n : n + 1] for n in range(len(STREAM)))) == EVENTS


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_cutting_a_stream_anywhere_does_not_matter(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    assert read(*(STREAM[a:b] for a, b in pairwise(edges))) == EVENTS


@given(st.lists(st.binary(max_size=30), max_size=10))
def test_any_bytes_are_taken(chunks: list[bytes]) -> None:
    assert read(*chunks) == read(b"".join(chunks))


def test_an_event_is_given_as_soon_as_its_blank_line_is_there() -> None:
    reader = SseReader()
    assert reader.feed(b"data: 1\n") == []
    assert reader.feed(b"\n") == [b"1"]
    assert reader.feed(b"data: 2\r\n\r") == [b"2"]
    assert reader.feed(b"") == []
    assert reader.feed(b"\ndata: 3\r\n\r\n") == [b"3"]


@pytest.mark.parametrize(
    ("rest", "event"),
    [
        pytest.param(b"", None, id="nothing is left"),
        pytest.param(b": comment", None, id="a comment is left"),
        pytest.param(b"data: [DONE]", b"[DONE]", id="the last line has no end"),
        pytest.param(b"data: [DONE]\n", b"[DONE]", id="the blank line is missing"),
        pytest.param(b"data: 1\ndata: 2\r", b"1\n2", id="two lines and half a CRLF"),
    ],
)
def test_the_event_that_a_stream_ends_in_can_be_had(rest: bytes, event: bytes | None) -> None:
    reader = SseReader()
    reader.feed(b"data: 0\n\n" + rest)
    assert reader.finish() == event


@pytest.mark.parametrize(
    "chunks",
    [
        pytest.param([b"data: 1234567", b"89"], id="a line without an end"),
        pytest.param([b"data: 123456789012345\n\n"], id="a line"),
        pytest.param([b"data: 12345\n"] * 3, id="the lines of one event"),
        pytest.param([b"data\n"] * 15, id="empty lines of one event"),
        pytest.param([b":" * 8, b":" * 8], id="a comment"),
    ],
)
def test_what_is_too_long_is_refused(chunks: list[bytes]) -> None:
    reader = SseReader(limit=14)
    for chunk in chunks[:-1]:
        assert reader.feed(chunk) == []
    with pytest.raises(SseTooLong):
        reader.feed(chunks[-1])


def test_many_short_events_are_not_too_long() -> None:
    reader = SseReader(limit=14)
    for _ in range(10):
        assert reader.feed(b"data: 12345\n\ndata: 67890\n\n") == [b"12345", b"67890"]
