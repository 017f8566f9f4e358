"""Runs whose model calls natively. No clock, no tasks."""

from dataclasses import replace

import pytest
from support.doubles import catalog, tool
from support.feeding import feed, made, returned
from support.native_models import native

from diptych.core.catalog import Catalog
from diptych.core.codec import catalog_blob, decode, encode
from diptych.core.commands import AskModel
from diptych.core.context_window import ContextWindow
from diptych.core.events import (
    Called,
    ContextRefused,
    FormatChanged,
    Offered,
    OwnerChanged,
    Replied,
    RunRequested,
    Streamed,
)
from diptych.core.messages import Message, NativeCall, ToolCall, Usage
from diptych.core.model_request import request_weight
from diptych.core.prompt import native_system_prompt, system_prompt
from diptych.core.reducer import advance, replay
from diptych.core.run_settings import RunSettings
from diptych.core.state import Run

ECHO = native("echo", text="a")
BROKEN = NativeCall("b", "echo", '{"text": ')
TOOLS = catalog("echo", "look", agents=["writer"])

NATIVE = RunSettings(action_format="native")


def begun(*, settings=NATIVE, offers=TOOLS, history=(), **rest):
    offered = Offered(
        offers, "JSON SYSTEM", settings, native_prompt="SYSTEM", action_format="native", **rest
    )
    return feed(Run(history=history), RunRequested("hi", system="Rhyme."), offered)


def replied(*calls, text="", **rest):
    return Replied(text, calls=calls, **rest)


def test_the_model_is_offered_functions_and_no_rules_for_json():
    run, (ask,) = begun()
    assert [f.name for f in ask.request.tools] == ["echo", "look", "delegate_to_writer"]
    assert ask.request.tools is TOOLS.functions.tools
    assert ask.request.messages[0].content.startswith("SYSTEM\n\n")
    assert ask.request.messages[1:] == (Message("user", "hi"),)
    assert not ask.may_change_format
    assert run.pending == (ask,)


def test_a_call_is_kept_in_the_api_s_form_and_its_result_is_a_tool_message():
    run, commands = feed(begun()[0], replied(ECHO, text="Let me see."))
    (call,) = made(commands)
    assert call == ToolCall("call_1_1", "echo", {"text": "a"})
    run, (ask,) = feed(run, Called(call, 1), returned("call_1_1", "AAA"))
    assert ask.request.messages[2:] == (
        Message("assistant", "Let me see.", (ECHO,)),
        Message("tool", "AAA", call_id="a"),
    )
    assert run.native_reply is None


def test_the_reasoning_that_led_to_calls_and_what_came_beside_them_are_kept_with_them():
    signed = replace(ECHO, extra={"google": {"thought_signature": "Ej"}})
    run, _ = feed(begun()[0], replied(signed, reasoning="I echo."), returned("call_1_1", "AAA"))
    asked = Message("assistant", "", (signed,), reasoning="I echo.")
    assert run.messages[-2] == asked
    (ask,) = run.pending
    assert asked in ask.request.messages
    run, (ask,) = feed(run, Replied("ok"))
    assert "I echo." not in str(ask.request.messages)  # for the answer calls are text
    run, _ = feed(begun()[0], replied(BROKEN, reasoning="I echo."))
    assert run.messages[-2].reasoning == "I echo."


def test_reasoning_that_does_not_fit_is_left_out_before_anything_else():
    said = Message("assistant", "", (ECHO,), reasoning="It thinks. " * 500)
    history = (Message("user", "hi"), said, Message("tool", "AAA", call_id="a"))
    _, (ask,) = begun(history=history, window=ContextWindow(1_000))
    assert ask.request.messages[2] == replace(said, reasoning="")
    _, (ask,) = begun(history=history, window=ContextWindow(100_000))
    assert ask.request.messages[2] == said


def test_a_refused_reply_is_answered_for_every_call_and_nothing_of_it_runs():
    run, (ask,) = feed(begun()[0], replied(ECHO, native("nope", "b")))
    assert isinstance(ask, AskModel)
    assert (run.step, run.errors, run.calls) == (1, 1, ())
    asked, first, second = run.messages[1:]
    assert asked.calls == (ECHO, native("nope", "b"))
    assert (first.role, first.call_id, second.call_id) == ("tool", "a", "b")
    assert "error_type: unknown_tool" in first.content
    assert "tools available: echo, look" in first.content
    assert "error_type: unknown_tool" in second.content
    assert "not run" in second.content


def test_native_calls_that_nobody_asked_for_are_made_all_the_same():
    run, _ = feed(Run(), RunRequested("hi"), Offered(TOOLS, "SYSTEM"))
    run, commands = feed(run, replied(ECHO))
    assert made(commands) == [ToolCall("call_1_1", "echo", {"text": "a"})]
    _, (ask,) = feed(run, returned("call_1_1", "AAA"))
    assert ask.request.tools == ()
    assert ask.request.messages[2].content == '{"tool": "echo", "arguments": {"text": "a"}}'
    assert ask.request.messages[3].role == "user"


def test_a_call_whose_result_is_missing_is_told_as_text():
    history = (
        Message("user", "before"),
        Message("assistant", "", (ECHO, native("look", "b"))),
        Message("tool", "AAA", call_id="a"),
        Message("assistant", "So it is."),
    )
    _, (ask,) = begun(history=history)
    assert all(not m.calls and m.role != "tool" for m in ask.request.messages)
    assert "AAA" in ask.request.messages[3].content


# `auto`


AUTO = RunSettings(action_format="auto")
REFUSED = FormatChanged("json", "The endpoint takes no tools.")


def test_a_refusal_of_tools_costs_no_step_and_the_run_goes_on_in_json():
    run, (ask,) = begun(settings=AUTO)
    assert ask.may_change_format
    run, (again,) = feed(run, REFUSED)
    assert (run.step, run.model_calls, run.pending) == (0, 0, (again,))
    assert (again.request.tools, again.request.index, again.may_change_format) == ((), 0, False)
    assert again.request.messages[0].content.startswith("JSON SYSTEM\n\n")
    assert again.request.messages[0].content.endswith("Rhyme.")


def test_a_refusal_of_tools_after_one_as_too_long_asks_again():
    """In JSON the request is longer: what was refused before says nothing of it."""
    results = (
        *(replied(*(native("echo", f"c{n}", text=str(n)) for n in range(9))),),
        *(returned(f"call_1_{n}", "many words " * 250) for n in range(1, 10)),
    )
    run, (asked,) = feed(begun(settings=AUTO)[0], *results, ContextRefused(max_tokens=8_000))
    run, (again,) = feed(run, REFUSED)
    assert run.end is None
    assert request_weight(again.request) > request_weight(asked.request)


def test_functions_fit_the_window_too():
    """They are described more briefly, and calls of them are checked as ever."""
    text = {"type": "string", "description": "many words " * 20}
    schema = {"type": "object", "properties": {"text": text}}
    offers = Catalog(tuple(tool(f"tool{n}", schema=schema) for n in range(60)))
    window = ContextWindow(limit=4_000, is_measured=True)
    run, (ask,) = begun(offers=offers, window=window)
    assert request_weight(ask.request) < 4_000
    assert len(ask.request.tools) == 60
    assert ask.request.tools[0].parameters == {"type": "object", "properties": {"text": {}}}
    run, _ = feed(run, replied(native("tool1", text=5)))
    assert "error_type: invalid_arguments" in run.messages[-1].content


# The record


CATALOG = TOOLS
PROMPTS = system_prompt("Be brief.", CATALOG), native_system_prompt("Be brief.", CATALOG)


def recorded(*events, settings=AUTO):
    """Give a run's events as they come back from its record."""
    offered, blob = catalog_blob(CATALOG, PROMPTS[0], settings, PROMPTS[1])
    first = (
        RunRequested("hi"),
        Offered(CATALOG, PROMPTS[0], settings, offered.key, "n", PROMPTS[1], "native"),
    )
    rows = map(encode, (*first, *events))
    return [decode(*row, {offered.key: blob}.__getitem__) for row in rows], (*first, *events)


def test_a_run_comes_back_from_its_record_at_every_event():
    signed = replace(ECHO, extra={"google": {"thought_signature": "Ej"}})
    calls = replied(signed, native("look", "b"), native("echo", "c", text="a"), usage=Usage(1, 2))
    calls = replace(calls, reasoning="I echo.")
    _, (write,) = advance(replay(recorded()[1]), replied(BROKEN))
    events = (
        replied(BROKEN),
        write.event,
        calls,
        Called(ToolCall("call_2_1", "echo", {"text": "a"}), 2),
        returned("call_2_1", "AAA"),
        OwnerChanged(),
        returned("call_2_2", "?", "unknown"),
        REFUSED,
        Replied("{}"),
        Streamed("So."),
        Replied(""),
    )
    back, made_of = recorded(*events)
    for n in range(2, len(back) + 1):
        assert replay(back[:n]) == replay(made_of[:n])
    assert [m.role for m in replay(back).messages] == [
        "user", "assistant", "tool", "assistant", "tool", "tool", "tool",
    ]  # fmt: skip


PREAMBLE = "I will look at it. " * 10


@pytest.mark.parametrize("call", [ECHO, BROKEN], ids=["a call", "a broken one"])
def test_what_was_told_before_calls_came_stays_part_of_the_reply(call):
    settings = RunSettings(action_format="native", answer_mode="direct")
    run, (ask,) = begun(settings=settings)
    assert ask.purpose == "either"
    run, _ = feed(run, Streamed(PREAMBLE), Replied("First a.", calls=(call,)))
    assert run.draft.text == ""  # it is void for those who read the answer
    asked = next(m for m in run.messages if m.calls)
    assert asked == Message("assistant", f"{PREAMBLE}First a.", (call,))
