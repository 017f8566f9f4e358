"""Reading the events of a run to the letter of the standard, however the bytes are cut."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diptych.cli.event_stream import EventStream, EventTooLong, Frame


def read(*chunks: bytes, last_id: str = "") -> list[tuple[str, bytes, str]]:
    stream = EventStream(last_id)
    frames = [frame for chunk in chunks for frame in stream.feed(chunk)]
    return [(frame.event, frame.data, frame.last_id) for frame in frames]


@pytest.mark.parametrize(
    ("text", "frames"),
    [
        pytest.param(b"data: x\n\n", [("message", b"x", "")], id="an event without a name"),
        pytest.param(
            b"event: text\nid: 7\ndata:x\n\n", [("text", b"x", "7")], id="all of its fields"
        ),
        pytest.param(b"\xef\xbb\xbfdata: x\n\n", [("message", b"x", "")], id="a byte order mark"),
        pytest.param(
            b"data: x\n\n\xef\xbb\xbfdata: y\n\n",
            [("message", b"x", "")],
            id="one that is not first",
        ),
        pytest.param(
            b"data: x\ndata\ndata: y\n\n", [("message", b"x\n\ny", "")], id="lines of data"
        ),
        pytest.param(b"data: x\r\n\r\n", [("message", b"x", "")], id="CRLF"),
        pytest.param(b"data: x\r\r", [("message", b"x", "")], id="CR"),
        pytest.param(b": ping\n\ndata: x\n\n", [("message", b"x", "")], id="a comment"),
        pytest.param(
            b"id: 3\ndata: x\n\ndata: y\n\n",
            [("message", b"x", "3"), ("message", b"y", "3")],
            id="an id stays until another one comes",
        ),
        pytest.param(
            b"id: 3\ndata: x\n\nid\ndata: y\n\n",
            [("message", b"x", "3"), ("message", b"y", "")],
            id="an empty id takes it back",
        ),
        pytest.param(
            b"id: 3\n\ndata: y\n\n", [("message", b"y", "3")], id="an id comes without data, too"
        ),
        pytest.param(b"id: 3\0\ndata: x\n\n", [("message", b"x", "")], id="no id holds a NUL"),
        pytest.param(
            b"event: a\n\ndata: x\n\n", [("message", b"x", "")], id="a name does not stay"
        ),
        pytest.param(b"data: x\n", [], id="an event that has not ended"),
        pytest.param(
            b"retry: 10\nfoo: x\ndata:  x\n\n", [("message", b" x", "")], id="other fields"
        ),
    ],
)
def test_events_are_read_by_the_standard(text: bytes, frames: list[tuple[str, bytes, str]]) -> None:
    assert read(text) == frames


def test_an_id_counts_when_its_event_is_whole() -> None:
    stream = EventStream("1")
    stream.feed(b"id: 2\ndata: x\n")
    assert stream.last_id == "1"
    assert stream.feed(b"\n") == [Frame("message", b"x", "2")]
    assert stream.last_id == "2"


def test_what_one_begins_with_is_the_last_id() -> None:
    assert read(b"data: x\n\n", last_id="9") == [("message", b"x", "9")]


TEXT = (
    "\ufeffid: 1\r\nevent: text\ndata: ü\r\ndata: b\r\r: x\n\nid\ndata: c\n\ndata: d\r\n\r\n"
).encode()


@settings(deadline=None)  # on a loaded machine
@given(st.lists(st.integers(0, len(TEXT)), max_size=8))
def test_it_does_not_matter_where_the_bytes_are_cut(cuts: list[int]) -> None:
    ends = [0, *sorted(cuts), len(TEXT)]
    chunks = [TEXT[a:b] for a, b in itertools.pairwise(ends)]
    assert read(*chunks) == read(TEXT)
    assert read(TEXT) == [
        ("text", "ü\nb".encode(), "1"),
        ("message", b"c", ""),
        ("message", b"d", ""),
    ]


@pytest.mark.parametrize("chunk", [b"data: xx", b"data: x\ndata: x\n"])
def test_too_long_is_an_error(chunk: bytes) -> None:
    stream = EventStream(limit=3)
    with pytest.raises(EventTooLong):
        stream.feed(chunk)
