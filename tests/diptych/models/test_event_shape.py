"""The text of an event that is like one before is what decoding the event gives: never another."""

import json

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from diptych.core.messages import Usage
from diptych.models.decoding import DONE, ChunkDecoder
from diptych.models.event_shape import _PROBE
from diptych.models.failures import AttemptFailure, ReportedError

Said = tuple[str, str, bool, object]


def event(content: object, *, compact: bool = True, index: int = 0, **more: object) -> bytes:
    choice = {"index": index, "delta": {"content": content}, "finish_reason": None}
    separators = (",", ":") if compact else (", ", ": ")
    chunk = {"id": "c-1", "object": "chat.completion.chunk", "choices": [choice], **more}
    return json.dumps(chunk, separators=separators).encode()


LIKE = event("MARK")
BEFORE, AFTER = LIKE.split(b"MARK")
_texts = st.text(max_size=6) | st.sampled_from(
    ["\n", '"', "\\", "\\n", "grüße", "😀", "\u2028", " "]
)
_insides = st.binary(max_size=8) | st.sampled_from(
    [
        b"",
        b'"',
        b"\\",
        b'\\"',
        b"\\u00e4",
        b"\\ud83d",
        b"\\ude00",
        b"\n",
        b"\xff",
        b"\xf0\x9f",
        b'a","role":"x',
        b'a"},"finish_reason":"stop","x":{"y":"',
        AFTER + BEFORE,
    ]
)
_events = st.one_of(
    st.builds(event, _texts),
    st.builds(event, _texts, compact=st.just(False)),
    st.builds(event, _texts, index=st.sampled_from([0, 1])),
    st.builds(event, _texts, usage=st.just({"prompt_tokens": 1, "completion_tokens": 2})),
    st.builds(event, _texts, usage=st.none()),
    _insides.map(lambda inside: BEFORE + inside + AFTER),
    st.sampled_from([BEFORE, AFTER, BEFORE[:-1] + AFTER, BEFORE + AFTER[1:], DONE, b"", b"{}"]),
)


def said(reply: ChunkDecoder, events: list[bytes]) -> Said | str:
    try:
        text, reasoning = reply.apply([("message", data, "") for data in events])
    except (AttemptFailure, ReportedError) as error:
        return f"{type(error).__name__}: {error}"
    return text, reasoning, reply.is_complete, reply.usage


def said_one_by_one(events: list[bytes]) -> list[Said | str]:
    """Decode each event without a shape that was learnt from another one."""
    reply = ChunkDecoder()
    found = []
    for data in events:
        reply._shape.forget()
        found.append(said(reply, [data]))
        if isinstance(found[-1], str) or reply.is_done:
            break
    return found


@settings(max_examples=400)
@given(st.lists(_events, max_size=12))
@example([LIKE, event("a"), event("a\nb"), event('"'), BEFORE + b"\\" + AFTER])
@example([LIKE, event("a"), BEFORE[:-1] + AFTER])
@example([LIKE, event("a"), event("b", index=1), event("c"), event("d")])
@example([LIKE, event("a"), BEFORE + b"\\ud83d" + AFTER, event("b")])
def test_a_shape_changes_nothing_of_what_is_decoded(events: list[bytes]) -> None:
    reply = ChunkDecoder()
    found = []
    for data in [LIKE, *events]:
        found.append(said(reply, [data]))
        if isinstance(found[-1], str) or reply.is_done:
            break
    assert found == said_one_by_one([LIKE, *events])


@given(st.lists(_events, max_size=12))
def test_events_that_arrive_together_say_what_single_ones_say(events: list[bytes]) -> None:
    alone = said_one_by_one([LIKE, *events])
    failures = [one for one in alone if isinstance(one, str)]
    together = said(ChunkDecoder(), [LIKE, *events])
    if failures:
        assert together == failures[0]
    else:
        assert isinstance(together, tuple)
        assert together[0] == "".join(one[0] for one in alone)
        assert together[2:] == alone[-1][2:]


def test_an_error_that_looks_like_text_is_an_error() -> None:
    reply = ChunkDecoder()
    reply.apply([("message", LIKE, ""), ("message", event("a"), "")])
    with pytest.raises(ReportedError):
        reply.apply([("error", event("b"), "")])


@pytest.mark.parametrize(
    "twofold",
    [
        b'{"note":{"content":"%b"},"choices":[{"index":0,"delta":{"content":"%b"}}]}',
        b'{"choices":[{"index":0,"delta":{"content":"%b","content":"%b"}}]}',
    ],
)
@pytest.mark.parametrize("text", [_PROBE, "x"])
def test_the_other_of_two_contents_is_never_the_text(twofold: bytes, text: str) -> None:
    reply = ChunkDecoder()
    for other in (b"a", b"b"):
        assert said(reply, [twofold % (other, text.encode())]) == (text, "", False, None)


def decoded(monkeypatch: pytest.MonkeyPatch, events: list[bytes]) -> int:
    """Decode events; say how many of them were parsed as JSON objects."""
    parsed = 0
    loads = orjson.loads

    def counted(data: bytes) -> object:
        nonlocal parsed
        parsed += data[:1] == b"{"
        return loads(data)

    monkeypatch.setattr(orjson, "loads", counted)
    reply = ChunkDecoder()
    assert reply.apply([("message", data, "") for data in events])[0]
    return parsed


def test_what_is_like_the_event_before_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["a", "\n", 'b"', "ü", *map(str, range(50))]
    assert decoded(monkeypatch, [event(text) for text in texts]) == 2  # one, and a look at it


def test_a_usage_that_is_yet_to_come_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenAI and Azure say `"usage": null` in each chunk but the last."""
    assert decoded(monkeypatch, [event(text, usage=None) for text in "abcdefgh"]) == 2


@pytest.mark.parametrize(
    ("beside", "reasoning", "parsed"),
    [
        ({"role": "assistant"}, "", 2),  # Ollama, Gemini
        ({"role": "assistant", "reasoning": None, "reasoning_details": []}, "", 2),  # OpenRouter
        ({"reasoning_content": ""}, "", 2),
        ({"reasoning_content": "hm"}, "hmhmhm", 3),
        ({"tool_calls": [{"index": 0, "function": {"name": "f"}}]}, "", 3),
    ],
)
def test_what_stands_beside_the_text_is_read_if_there_is_anything(
    monkeypatch: pytest.MonkeyPatch, beside: dict[str, object], reasoning: str, parsed: int
) -> None:
    delta = json.dumps({"content": "MARK", **beside}, separators=(",", ":")).encode()
    like = LIKE.replace(b'{"content":"MARK"}', delta)
    events = [like.replace(b"MARK", text) for text in (b"a", b"b", b"c")]
    assert said(reply := ChunkDecoder(), events) == ("abc", reasoning, False, None)
    assert [call.name for call in reply.calls] == (["f"] if "tool_calls" in beside else [])
    assert decoded(monkeypatch, events) == parsed


def test_the_usage_of_a_choice_is_read_beside_that_of_no_chunk() -> None:
    """Moonshot counts in the choice."""
    reply = ChunkDecoder()
    counted = b'{"index":0,"delta":{"content":"b"},"usage":{"prompt_tokens":1}}'
    for data in (event("a", usage=None), b'{"choices":[%b],"usage":null}' % counted):
        assert isinstance(said(reply, [data]), tuple)
    assert reply.usage == Usage(1, 0)


def test_where_each_event_is_another_it_is_soon_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    events = [event("a", obfuscation=str(n)) for n in range(50)]
    assert decoded(monkeypatch, events) == 54


def test_two_changes_one_after_another_are_no_reason_to_give_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """llama.cpp says with each event which second it is (`created`)."""
    seconds = [1, 2, 3, *[4] * 20, 5, 6, *[7] * 20]
    assert decoded(monkeypatch, [event("a", created=second) for second in seconds]) == 14


def test_what_changes_from_time_to_time_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    events = [event("a", created=n // 10) for n in range(50)]
    assert decoded(monkeypatch, events) == 10
