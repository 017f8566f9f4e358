"""A model that writes anything: what a real one said, mixed with calls, reasoning and noise.

However its replies are parted, each run gives the answer that was meant, or ends with an error. No
answer holds a call, or the reasoning in front of it, none that was cut off looks whole, and nothing
that is asked for in an answer is run.
"""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from support.doubles import ListeningModel, catalog, house, types

from diptych.core.answer_gate import is_call, is_only_no_op
from diptych.core.codec import TERMINAL, Record
from diptych.core.errors import ModelError
from diptych.core.messages import NativeCall
from diptych.core.reading import Calls, parse, strip_lead
from diptych.core.reading.repetition import repetition_end
from diptych.core.run_settings import RunSettings
from diptych.ports import Delta, Model, Notice, Reply
from diptych.runs.answers import whole_answer
from diptych.runs.definition import AgentDefinition

RECORDED = Path(__file__).parents[2] / "recorded" / "model" / "replies.jsonl"
TEXTS = [text for line in RECORDED.read_text().splitlines() if (text := json.loads(line)["text"])]
OFFERED = catalog("add", agents=["peer"])
ADD = '{"tool": "add", "arguments": {"a": 1}}'
DELEGATE = '{"agent": "peer", "task": "Go."}'
SECRET = "xyzzy"  # stands in reasoning
FRAGMENTS = (
    *(ADD, DELEGATE, "{}", "<>", "[]", f"[{ADD}, {DELEGATE}]", f"```json\n{ADD}\n```"),
    *(f"<tool_call>{ADD}</tool_call>", "<tool_call>", "</tool_call>", '{"name": "add", '),
    *('"parameters": {"a": 1}}', "<function=add>{}</function>", "[TOOL_CALLS]", "[ARGS]"),
    *("<|python_tag|>", "add(a=1)", "Action: add\nAction Input: {}", "Observation:", ADD[:20]),
    *(f"<think>{SECRET}</think>", f"[THINK]{SECRET}[/THINK]", "\ufeff", "\u2028", "\r\n", "\n\n"),
    *("```", "```json\n", "```python\n", "~~~", "{", "}", "[", "]", '"', "\\", " ", "é🎈", "<"),
)
ERRORS = {"empty_answer", "answer_not_given", "invalid_output", "model_cut"}
NUMBER = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}
NUMBERS = (
    '{"n": 1}',
    '{"n": 2',
    '{"n": "x"}',
    '```json\n{"n": 3}\n```',
    '{"n": 1, "m": 2}',
    '[{"n": 4}]',
)
slices = st.builds(
    lambda text, begin, length: text[begin : begin + length],
    st.sampled_from(TEXTS),
    st.integers(0, 80),
    st.integers(0, 400),
)
hostile = st.lists(slices | st.sampled_from(FRAGMENTS) | st.text(max_size=3), max_size=6)
MODES = st.sampled_from(["separate", "direct"])
FORMATS = st.sampled_from(["json", "native"])
CUT_OFF = {"length", "content_filter"}  # whose calls are never made
reasons = st.sampled_from(["stop", "stop", "length", "content_filter"])


@dataclass
class Said:
    """A reply: its text in pieces, and how it ends; after `breaks_at` pieces it breaks off."""

    pieces: list[str]
    finish_reason: str = "stop"
    breaks_at: int | None = None
    calls: tuple[NativeCall, ...] = ()

    @property
    def text(self) -> str:
        return "".join(self.pieces)


@st.composite
def replies(draw: st.DrawFn, *, breaks: bool = False, more: Sequence[str] = ()) -> Said:
    text = "".join(draw(st.lists(st.sampled_from(more), max_size=2) if more else st.just([])))
    text = "".join(draw(st.permutations([text, *draw(hostile)])))
    cuts = draw(st.just(range(len(text))) | st.lists(st.integers(0, 300), max_size=6))
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[a:b] for a, b in itertools.pairwise(places)]
    breaks_at = draw(st.integers(0, len(pieces))) if breaks else None
    return Said(pieces, draw(reasons), breaks_at)


class HostileModel(Model):
    """Says these replies in turn, and then "Fine." for good."""

    def __init__(self, *said: Said) -> None:
        self.said = list(said)

    def next(self) -> Said:
        return self.said.pop(0) if self.said else Said(["Fine."])

    async def complete(self, request: Any) -> Reply:
        said = self.next()
        if said.breaks_at is not None:
            raise ModelError("model_cut", "cut")
        return Reply(said.text, finish_reason=said.finish_reason, calls=said.calls)

    async def stream(self, request: Any) -> AsyncIterator[Delta]:
        said = self.next()
        for piece in said.pieces[: said.breaks_at]:
            yield Delta(piece)
        if said.breaks_at is not None:
            raise ModelError("model_cut", "cut")
        yield Delta(finish_reason=said.finish_reason, calls=said.calls)


class Played:
    """A run of an agent with this model, to its end, and what must hold of any."""

    def __init__(self, *said: Said, **settings: Any) -> None:
        self.items, self.called = asyncio.run(self._run(said, settings))
        self.records = [item for item in self.items if isinstance(item, Record)]
        self.end = self.records[-1]
        self.answer = whole_answer(self.records)
        self._check()

    async def _run(self, said: Any, settings: Any) -> tuple[list[Any], list[Any]]:
        async def add(**arguments: Any) -> str:
            return "1"

        async def peer(*_: Any) -> str:
            return "Done."

        definition = AgentDefinition("", RunSettings(**settings))
        home = house(
            model=HostileModel(*said),
            tools={"add": add},
            agents={"peer": peer},
            definition=definition,
        )
        items = await home.ask()
        return items, [*home.tools.called, *home.agents.delegations]

    @property
    def code(self) -> str:
        return str(self.end.metadata.get("code", self.end.event_type))

    @property
    def finish_reason(self) -> str:
        found = [r for r in self.records if r.event_type == "agent_response"]
        return str(found[-1].metadata["finish_reason"]) if found else ""

    def _check(self) -> None:
        assert [r.event_type for r in self.records if r.event_type in TERMINAL] == [self.code_type]
        if self.code != "completed":
            assert self.code in ERRORS
            return
        answer = self.answer or ""
        assert not is_call(answer, OFFERED)
        assert not is_only_no_op(answer)
        assert answer == self._told()

    @property
    def code_type(self) -> str:
        return self.end.event_type

    def _told(self) -> str:
        """Give the text that a reader has of the last answer."""
        texts: list[str] = []
        for record in self.records:
            if record.event_type == "answer_reset":
                texts.clear()
            elif record.event_type == "text":
                texts.append(str(record.content))
        return "".join(texts)


def meant(said: Said) -> tuple[str, str]:
    """Give the answer that a reply means, and its finish reason; read as a whole.

    Blanks alone are never told.
    """
    text = strip_lead(said.text)[0]
    text = text if text.strip() else ""
    end = repetition_end(text)
    return (text, said.finish_reason) if end is None else (text[:end], "length")


def is_answer(text: str, finish_reason: str) -> bool:
    if not text.strip():
        return finish_reason != "stop"
    return not is_only_no_op(text) and not is_call(text, OFFERED)


@settings(deadline=None)
@given(replies(), replies())
def test_an_answer_is_the_one_that_was_meant_or_an_error(first: Said, second: Said) -> None:
    run = Played(Said(["{}"]), first, second)
    assert not run.called
    for said in (first, second):
        text, reason = meant(said)
        if is_answer(text, reason):
            assert (run.code, run.answer, run.finish_reason) == ("completed", text, reason)
            return
    assert run.code in {"empty_answer", "answer_not_given"}


@settings(deadline=None)
@given(replies(breaks=True))
def test_an_answer_that_breaks_off_is_an_error(said: Said) -> None:
    run = Played(Said(["{}"]), said)
    assert run.code == "model_cut"
    assert not run.called
    assert "agent_response" not in types(run.items)


@settings(deadline=None)
@given(replies(), MODES, FORMATS)
def test_only_what_reads_as_calls_is_called(said: Said, mode: Any, action_format: Any) -> None:
    run = Played(said, answer_mode=mode, action_format=action_format)
    assert run.code == "completed"
    found = parse(strip_lead(said.text)[0], OFFERED)
    if run.called:
        assert isinstance(found, Calls)
        assert said.finish_reason not in CUT_OFF
        assert len(run.called) == len(found.calls)
    if mode == "separate":
        assert run.answer == "Fine."
        may_call = said.finish_reason not in CUT_OFF and isinstance(found, Calls)
        assert bool(run.called) == may_call or repetition_end(said.text) is not None


@settings(deadline=None)
@given(replies(), MODES)
def test_native_calls_beside_any_text_run_once_or_are_refused(said: Said, mode: Any) -> None:
    said.calls = (NativeCall("c", "add", '{"a": 1}'),)
    run = Played(said, action_format="native", answer_mode=mode)
    assert run.code == "completed"
    assert run.answer == "Fine."
    assert len(run.called) == (said.finish_reason not in CUT_OFF)


@settings(deadline=None)
@given(replies(), MODES)
def test_native_calls_in_place_of_an_answer_are_never_made(said: Said, mode: Any) -> None:
    said.calls = (NativeCall("c", "add", '{"a": 1}'),)
    run = Played(Said(["{}"]), said, answer_mode=mode)
    assert not run.called
    assert run.code == "completed"
    assert run.answer == "Fine."


@settings(deadline=None)
@given(st.lists(slices, min_size=1, max_size=3).map("".join), st.booleans())
def test_reasoning_in_front_of_an_answer_is_no_part_of_it(text: str, swallowed: bool) -> None:
    opening = "" if swallowed else "<think>"
    said = Said([*f"{opening}{SECRET} {ADD}</think>{text}"])
    run = Played(Said(["{}"]), said)
    assert SECRET not in (run.answer or "")
    notices = [i for i in run.items if isinstance(i, Notice) and i.type == "reasoning"]
    if not swallowed:
        assert SECRET in "".join(str(notice.fields["content"]) for notice in notices)
    assert not run.called


@settings(deadline=None)
@given(replies(more=NUMBERS), replies(more=NUMBERS), FORMATS)
def test_an_answer_with_a_schema_fits_it_or_is_an_error(
    first: Said, second: Said, action_format: Any
) -> None:
    opening = Said(["{}"])
    run = Played(opening, first, second, output_schema=NUMBER, action_format=action_format)
    assert not run.called
    if run.code == "completed":
        found = json.loads(run.answer or "")
        assert found.keys() == {"n"}
        assert type(found["n"]) is int


async def test_a_reply_that_was_left_before_it_told_its_usage_counts_as_an_estimate() -> None:
    class Cut(ListeningModel):
        async def complete(self, request: Any) -> Reply:
            return Reply("on and on " * 40, finish_reason="length")

    items = await house(model=Cut("unused", "Hi")).ask()
    usage: Any = next(i for i in items if getattr(i, "event_type", "") == "model_reply").metadata
    assert usage["usage"]["completion_tokens"] > 40
