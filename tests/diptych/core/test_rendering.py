"""What a model is sent: the forms that chat templates take, and where the prompts stand."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.doubles import catalog
from support.feeding import feed, returned
from support.native_models import native

from diptych.core.events import (
    Called,
    Offered,
    Replied,
    ReplyRejected,
    RunRequested,
    Streamed,
)
from diptych.core.json_values import decode_message, encode_message
from diptych.core.messages import Delegation, Message, NativeCall, ToolCall
from diptych.core.prompt import (
    NOT_AN_ACTION,
    action_rules,
    final_prompt,
    native_source,
)
from diptych.core.reading import ActionError
from diptych.core.rendering import (
    joined,
    summary_request,
    without_native_calls,
)
from diptych.core.run_settings import RunSettings
from diptych.core.state import Run

ECHO = '{"tool": "echo", "arguments": {"text": "a"}}'
TOOLS = catalog("echo")
RULES = action_rules(TOOLS)
OFFERED = Offered(TOOLS, "SYSTEM", nonce="5f0c")
RESULT = "[Step 1/5] Result of tool echo:\n<result-5f0c>\n{}\n</result-5f0c>"
KNOWN = "Result of tool echo (text: a):\n<result-5f0c>\n{}\n</result-5f0c>"
WRITER = "delegate_to_writer"
WRONG = '{"tool": "no"}'


def asked(*events, history=(), offered=OFFERED, question="Who?"):
    """Give the request that follows the events of a run."""
    _, commands = feed(Run(history=history), RunRequested(question), offered, *events)
    return tuple(replace(m, results=(), sources=()) for m in commands[-1].request.messages)


def with_result(text="AAA"):
    call = ToolCall("call_1_1", "echo", {"text": "a"})
    return Replied(ECHO), Called(call, 1), returned("call_1_1", text)


def test_a_tool_that_the_question_names_has_its_form_last_until_there_are_results():
    named = action_rules(TOOLS, "Use echo.")
    form = '{"tool": "echo", "arguments": {}}'
    assert named.endswith(f"\n\n{form}\n\nRespond with ONLY the JSON of a tool:")
    assert asked(question="Use echo.")[-1].content == f"Use echo.\n\n{named}"
    error = ActionError("json_syntax", "bad")
    rejected = asked(Replied("{ no"), ReplyRejected(error, "{ no"), question="Use echo.")
    assert rejected[-1].content.endswith(named)
    assert asked(*with_result(), question="Use echo.")[-1].content.endswith(RULES)


def test_after_a_result_how_to_act_stands_after_it_and_nowhere_else():
    sent = asked(*with_result())
    assert sent[1:] == (
        Message("user", "Who?"),
        Message("assistant", ECHO),
        Message("user", f"{RESULT.format('AAA')}\n\n{RULES}"),
    )


def test_the_final_prompt_takes_the_place_of_the_rules_and_repeats_the_question_after_results():
    _, *sent = asked(*with_result(), Replied("{}"))
    known = f"It is known:\n\n{KNOWN.format('AAA')}"
    assert sent == [Message("user", f"Who?\n\n{known}\n\n{final_prompt('Who?')}")]
    assert asked(Replied("{}"))[-1].content == f"Who?\n\n{final_prompt()}"


@pytest.mark.parametrize("action_format", ["json", "native"])
def test_what_is_known_is_each_result_under_its_call_in_words(action_format):
    """Of every turn, whatever the result is; the record keeps the conversation as it was."""
    offers = catalog("echo", agents=["writer"])
    form = {"action_format": action_format, "native_prompt": "SYSTEM"}
    offered = replace(OFFERED, catalog=offers, **form)
    task = '{"agent": "writer", "task": "One\\nline."}'
    calls = ToolCall("call_1_1", "echo", {"n": [1]}), Delegation("call_1_2", "writer", "One\nline.")
    said = Replied(f'[{{"tool": "echo", "arguments": {{"n": [1]}}}}, {task}]')
    if action_format == "native":
        said = Replied("", calls=(native("echo", n=[1]), native(WRITER, "2", task="One\nline.")))
    results = (
        returned("call_1_1", "denied: no", error="denied"),
        returned(
            "call_1_2",
            "[9 of 99 characters are left out here. To read them call "
            'result__read: {"tool": "result__read", "arguments": {"id": "f"}}]',
        ),
    )
    done = (said, *(Called(call, 1) for call in calls), *results)
    run, _ = feed(
        Run(), RunRequested("Who?"), offered, *done, Replied("{}"), Streamed("Ann."), Replied("")
    )
    assert run.messages[1].content == said.text
    history = tuple(map(decode_message, map(encode_message, run.messages)))
    _, *sent = asked(Replied("{}"), offered=offered, history=history, question="Why?")
    assert [m.content for m in sent[1:]] == ["Ann.", f"Why?\n\n{final_prompt()}"]
    told = sent[0].content
    assert '"tool"' not in told
    assert "[9 of 99 characters are left out here]\n</result-5f0c>" in told
    if action_format == "json":
        assert told.startswith(
            "Who?\n\nIt is known:\n\nError from tool echo (n: [1]):\n<result-5f0c>\n"
        )
        assert "\n\nResult of agent writer (task: One line.):\n<result-5f0c>\n" in told
    else:
        assert told.startswith(
            "Who?\n\nIt is known:\n\nResult of tool echo (n: [1]):\n<result-5f0c>\nError: "
        )
        assert f"\n\nResult of tool {WRITER} (task: One line.):\n<result-5f0c>\n" in told


def test_replies_that_could_not_be_used_are_sent_no_more():
    """Phase 2 is sent none of them, phase 1 the newest alone."""
    wrong = [Replied(f'{{"tool": "no{n}"}}') for n in range(3)]
    first, second, third = (asked(*wrong[:n]) for n in (1, 2, 3))
    assert [m.content for m in second[2:3]] == [wrong[1].text]
    assert [len(sent) for sent in (first, second, third)] == [4, 4, 4]
    assert second[-1].content.startswith("[Step 2/5] Your reply could not be used")
    call = Replied(ECHO), Called(ToolCall("call_3_1", "echo"), 3), returned("call_3_1")
    after = asked(*wrong[:2], *call, Replied("{}"))
    assert len(after) == 2
    assert "could not be used" not in after[-1].content
    settings = RunSettings(max_retries=0)
    sent = asked(Replied(WRONG), offered=Offered(TOOLS, "SYSTEM", settings))
    assert sent[1:] == (Message("user", f"Who?\n\n{final_prompt()}"),)


@pytest.mark.parametrize(("said", "told"), [("{}", f"\n\n{NOT_AN_ACTION}"), ("", "")])
def test_a_second_try_is_asked_in_the_plainest_form(said, told):
    earlier = Message("user", "Hi."), Message("assistant", "Hello.")
    _, sent = asked(*with_result(), Replied("{}"), Replied(said), history=earlier)
    before = "The conversation so far:\nUser: Hi.\nAssistant: Hello."
    known = f"It is known:\n\n{KNOWN.format('AAA')}"
    assert sent == Message("user", f"{before}\n\n{known}\n\nWho?{told}")


def test_native_calls_and_their_results_are_text_for_a_model_asked_in_json():
    call = NativeCall("c1", "add", '{"a": 1}')
    odd = NativeCall("c2", "ls", "not json")
    told = without_native_calls(
        [
            Message("assistant", "", (call, odd)),
            Message("tool", "1", call_id="c1"),
            Message("tool", "2", call_id="other"),
        ],
        "f0",
    )
    assert list(told) == [
        Message(
            "assistant",
            '{"tool": "add", "arguments": {"a": 1}}\n{"tool": "ls", "arguments": "not json"}',
        ),
        Message("user", "Result of tool add:\n<result-f0>\n1\n</result-f0>"),
        Message("user", "Result of tool a tool:\n<result-f0>\n2\n</result-f0>"),
    ]


def test_what_is_joined_keeps_its_calls_and_parts_and_results_stay_apart():
    calls = NativeCall("c1", "a", "{}"), NativeCall("c2", "b", "{}")
    image = {"type": "image_url", "image_url": {"url": "data:x"}}
    sent = joined(
        [
            Message("user", "one", parts=(image,)),
            Message("user", ""),
            Message("user", "two"),
            Message("assistant", "", (calls[0],)),
            Message("assistant", "b", (calls[1],)),
            Message("tool", "1", call_id="c1"),
            Message("tool", "2", call_id="c2"),
        ]
    )
    assert sent[0] == Message("user", "one\n\ntwo", parts=(image,))
    assert sent[1] == Message("assistant", "b", calls)
    assert [message.role for message in sent] == ["user", "assistant", "tool", "tool"]


MESSAGES = st.lists(
    st.builds(Message, st.sampled_from(["user", "assistant"]), st.text(max_size=5)), max_size=8
)


@given(MESSAGES, st.sampled_from([(), with_result(), (*with_result(), Replied("{}"))]))
def test_whatever_the_history_roles_alternate_from_the_user_to_the_user(history, events):
    sent = asked(*events, history=tuple(history))[1:]
    roles = [message.role for message in sent]
    assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"]


SET = {"temperature": 0.5, "seed": 7, "stop": ["\n"], "max_tokens": 5, "logit_bias": {"5": 9}}
OF_EVERY_STEP = {"temperature": 0.5, "seed": 7}


@pytest.mark.parametrize("offered", [OFFERED, replace(OFFERED, action_format="native")])
def test_what_a_request_sets_of_its_answer_cuts_no_call(offered):
    began, (actions,) = feed(Run(), RunRequested("Who?", parameters=SET), offered)
    _, (answer,) = feed(began, Replied("{}"))
    assert actions.request.parameters == OF_EVERY_STEP
    assert answer.request.parameters == SET
    assert summary_request(began, (Message("user", "Hi."),)).parameters == OF_EVERY_STEP


@pytest.mark.parametrize("name", [*SET])
def test_where_a_request_sets_something_of_its_answer_phase_1_is_none(name):
    direct = replace(OFFERED, settings=RunSettings(answer_mode="direct"))
    _, (ask,) = feed(Run(), RunRequested("Who?", parameters={name: SET[name]}), direct)
    assert ask.purpose == ("either" if name in OF_EVERY_STEP else "actions")


def test_arguments_of_a_callers_call_that_nest_endlessly_are_no_failure():
    deep = NativeCall("c1", "add", "[" * 100_000)
    messages = [Message("assistant", "", (deep,)), Message("tool", "3", call_id="c1")]
    assert deep.arguments in next(without_native_calls(messages)).content
    assert native_source(deep) == "Result of tool add"
