"""What a request to the model ends as, by what was asked for."""

import pytest

from diptych.core.asking import event_of_failure, event_of_reply
from diptych.core.commands import AskModel
from diptych.core.errors import ModelError
from diptych.core.events import Compacted, ContextRefused, Failed, FormatChanged, Replied
from diptych.core.messages import Message, Usage
from diptych.core.model_request import ModelRequest

REQUEST = ModelRequest((Message("user", "hi"),), 0)
ACTIONS = AskModel(REQUEST, "actions")
NATIVE = AskModel(REQUEST, "actions", may_change_format=True)
SUMMARY = AskModel(REQUEST, "summary", keeps=6)


def failure(code, *, max_tokens=None, prompt_tokens=None):
    return ModelError(code, "no", max_tokens=max_tokens, prompt_tokens=prompt_tokens)


TOO_LONG = failure("context_too_long", max_tokens=9, prompt_tokens=12)


@pytest.mark.parametrize(
    ("command", "error", "event"),
    [
        (ACTIONS, failure("model_failed"), Failed("model_failed", "no")),
        (ACTIONS, TOO_LONG, ContextRefused(9, 12)),
        (NATIVE, failure("tools_refused"), FormatChanged("json", "no")),
        (ACTIONS, failure("tools_refused"), Failed("tools_refused", "no")),
        (SUMMARY, TOO_LONG, Compacted("", 6, error="context_too_long")),
    ],
    ids=["any", "too long", "auto", "native only", "no summary"],
)
def test_a_failure_ends_a_request_as_what_it_means_for_the_run(command, error, event):
    assert event_of_failure(command, error) == event


def test_a_reply_is_a_summary_only_if_one_was_asked_for():
    reply = Replied("<think>So.</think>They met.", Usage(7, 2))
    assert event_of_reply(ACTIONS, reply) is reply
    assert event_of_reply(SUMMARY, reply) == Compacted("They met.", 6, Usage(7, 2))
