"""A streamed reply, in whatever pieces it comes: what is told, held, reasoning, and cut."""

import asyncio
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.doubles import catalog, facts, house

from diptych.core.answer_gate import AnswerGate, is_call
from diptych.core.run_settings import RunSettings
from diptych.ports import Delta, Model, Notice, Reply
from diptych.runs.answer_filter import AnswerFilter
from diptych.runs.definition import AgentDefinition
from diptych.runs.inbox import TextBatcher

ADD = '{"tool": "add"}'
PARTS = [ADD, "{}", "word ", "\n", "<think>", "</think>", "```json\n", "```", '{"a": 1}', "{", "é"]


def gate():
    return AnswerGate(lambda text: is_call(text, catalog("add")))


async def streamed(pieces, recorded=""):
    """Give what is told after the last reset, what is held, and the reasoning."""
    batcher, reasoning = TextBatcher(asyncio.Queue()), []
    stream = AnswerFilter(batcher, recorded, gate, reasoning.append)
    text = recorded

    def take():
        nonlocal text
        is_void, new = batcher.take()
        text = new if is_void else text + new

    for piece in pieces:
        stream.feed(piece)
        take()
    held = stream.finish()
    take()
    return text, held, "".join(reasoning).strip()


@settings(deadline=None)  # on a loaded machine
@given(st.lists(st.sampled_from(PARTS), max_size=8), st.lists(st.integers(0, 60), max_size=6))
def test_any_pieces_give_what_the_whole_gives(parts, cuts):
    text = "".join(parts)
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[a:b] for a, b in itertools.pairwise(places)]
    told, held, _ = asyncio.run(streamed(pieces))
    whole = asyncio.run(streamed([text]))
    assert (told + held).strip() == (whole[0] + whole[1]).strip()


@settings(deadline=None)  # on a loaded machine
@given(st.lists(st.sampled_from(PARTS), max_size=6), st.integers(0, 60))
def test_asked_for_again_with_any_part_on_record_it_ends_the_same(parts, known):
    text = "".join(parts)
    told, held, _ = asyncio.run(streamed(text))
    again = asyncio.run(streamed(text, told[:known]))
    assert (again[0], again[1]) == (told, held)
    other = asyncio.run(streamed(text, "something else"))
    assert (other[0], other[1]) == (told, held)


class Pieces(Model):
    """A model that answers phase 2 with these pieces."""

    def __init__(self, *deltas, first="{}"):
        self.deltas, self.first, self.closed, self.read = deltas, first, False, 0

    async def complete(self, request):
        return Reply(self.first)

    async def stream(self, request):
        try:
            for delta in self.deltas:
                self.read += 1
                yield delta
                await asyncio.sleep(0)
            yield Delta(finish_reason="stop")
        finally:
            self.closed = True


def reasoning_of(items):
    notices = [i for i in items if isinstance(i, Notice) and i.type == "reasoning"]
    return [str(notice.fields["content"]) for notice in notices]


def answer_of(items):
    found = [i for i in items if getattr(i, "event_type", "") == "agent_response"]
    return (found[-1].content, found[-1].metadata["finish_reason"]) if found else None


async def test_reasoning_is_told_as_it_comes_and_is_no_part_of_the_answer():
    deltas = [Delta("<thi"), Delta("nk>let "), Delta("me"), Delta("</think>\n\n3"), Delta("!")]
    told = await house(model=Pieces(*deltas)).ask()
    assert reasoning_of(told) == ["let ", "me"]
    assert answer_of(told) == ("3!", "stop")
    own = [Delta(reasoning="let "), Delta(reasoning="me"), Delta("3!")]
    told = await house(model=Pieces(*own)).ask()
    assert reasoning_of(told) == ["let ", "me"]
    assert answer_of(told) == ("3!", "stop")


async def test_a_template_that_opens_the_reasoning_is_known_by_the_first_reply():
    model = Pieces(Delta("let me"), Delta("</think>"), Delta("3"), first="so\n</think>{}")
    told = await house(model=model).ask()
    assert facts(told) == ["user_message", "agent_response"]
    assert reasoning_of(told)[0].strip() == "so"


async def test_what_one_run_learns_of_the_template_all_others_know():
    """Or each streamed chat of `answerMode: direct` would break off with an answer_reset."""
    model = Pieces(Delta("let me"), Delta("</think>"), Delta("3"))
    definition = AgentDefinition("", RunSettings(answer_mode="direct"))
    home = house(model=model, definition=definition)
    assert "answer_reset" in facts(await home.ask())
    told = await home.ask()
    assert facts(told) == ["user_message", "agent_response"]
    assert answer_of(told) == ("3", "stop")


async def test_a_template_that_opens_no_reasoning_any_more_is_noticed():
    model = Pieces(Delta("let me"), Delta("</think>"), Delta("3"))
    definition = AgentDefinition("", RunSettings(answer_mode="direct"))
    home = house(model=model, definition=definition)
    await home.ask()
    model.deltas = (Delta("It "), Delta("is 3."))
    first, second = await home.ask(), await home.ask()
    assert answer_of(first) == answer_of(second) == ("It is 3.", "stop")
    assert reasoning_of(second) == []


@pytest.mark.parametrize("mode", ["separate", "direct"])
async def test_an_answer_that_repeats_itself_is_cut(mode):
    line = "The same words again and again, without an end that anybody would wait for. "
    model = Pieces(*[Delta(line)] * 500)
    definition = AgentDefinition("", RunSettings(answer_mode=mode))
    told = await house(model=model, definition=definition).ask()
    text, reason = answer_of(told)
    assert reason == "length"
    assert len(text) < 3000
    assert model.closed
    assert model.read < 60


async def test_reasoning_that_repeats_itself_is_cut_too():
    model = Pieces(*[Delta(reasoning="Wait, let me think about that once more, shall I? ")] * 500)
    told = await house(model=model).ask()
    assert answer_of(told) == ("", "length")
    assert model.read < 60
