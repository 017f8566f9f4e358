"""What a step with native calls adds to the conversation (loop.md §3, §4).

A reply with native calls is kept in the API's form, and each of its calls is answered by a `tool`
message with the API's id, in the order of the reply: APIs refuse a call that has no answer.
"""

from collections.abc import Mapping
from dataclasses import replace

from diptych.core import prompt
from diptych.core.events import Replied, ReplyRejected
from diptych.core.functions import function_name
from diptych.core.messages import Call, Message, NativeCall, Result
from diptych.core.reading import Calls, strip_lead
from diptych.core.state import NativeReply


def native_reply(reply: Replied) -> NativeReply:
    """The reply as it is kept: a name that no API takes would make its session unusable."""
    calls = tuple(replace(call, name=function_name(call.name)) for call in reply.calls)
    return NativeReply(strip_lead(reply.text)[0], calls, reasoning=reply.reasoning)


def with_call_ids(reply: NativeReply, found: Calls, named: tuple[Call, ...]) -> NativeReply:
    """Say which of the run's calls each native call became."""
    places = found.places or range(len(named))
    return replace(reply, call_ids=tuple(named[place].id for place in places))


def said_by(reply: Replied) -> str:
    """What a model said with native calls, for people and for an error's record."""
    calls = (f"{call.name}({call.arguments})" for call in reply.calls)
    return "\n".join(filter(None, (strip_lead(reply.text)[0], *calls)))


def asking_message(reply: NativeReply) -> Message:
    """The assistant's message that asks for the calls."""
    return Message("assistant", reply.text, reply.calls, reasoning=reply.reasoning)


def result_messages(reply: NativeReply, results: Mapping[str, Result]) -> tuple[Message, ...]:
    """The results of a step, by the ids of the run's calls, as `tool` messages."""
    texts = (prompt.native_result(results[call_id]) for call_id in reply.call_ids)
    return _answers(reply.calls, tuple(texts))


def rejection_messages(reply: NativeReply, event: ReplyRejected) -> tuple[Message, ...]:
    """The refused reply, and what was wrong with it, told as the result of each of its calls."""
    texts = (prompt.native_error(event.error, event.said, n) for n in range(len(reply.calls)))
    return asking_message(reply), *_answers(reply.calls, tuple(texts))


def _answers(calls: tuple[NativeCall, ...], texts: tuple[str, ...]) -> tuple[Message, ...]:
    answers = zip(calls, texts, strict=True)
    return tuple(Message("tool", text, call_id=call.id) for call, text in answers)
