"""Reduces a conversation to facts: results, without the calls that produced them (loop.md §4).

Models imitate what they see: after a call they call again, after a mistake they repeat it. So phase
2 sees results without calls and without rejected replies, and phase 1 only the newest rejected
reply. The log keeps everything.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest

from diptych.core import prompt
from diptych.core.excerpts import without_reader
from diptych.core.messages import Message, NativeCall

_STEP = r"\[Step \d+/\d+\] "
_RESULTS = re.compile(rf"{_STEP}(?:Result of|Error from) (?:tool|agent) ")
_REJECTION = re.compile(rf"{_STEP}{re.escape(prompt.NOT_USED)}\nerror_type: ")
_NATIVE_REJECTION = re.compile(
    rf"{re.escape(prompt.NOT_USED)}\nerror_type: |error_type: \w+\n{re.escape(prompt.NOT_RUN)}$"
)


def is_rejection(message: Message) -> bool:
    """Whether a message tells the model why its reply was rejected."""
    form = {"user": _REJECTION, "tool": _NATIVE_REJECTION}.get(message.role)
    return form is not None and form.match(message.content) is not None


def without_rejections(
    messages: Sequence[Message], *, keeps_newest: bool = False
) -> Sequence[Message]:
    """Remove rejected replies and their rejections."""
    wrong = [is_rejection(message) for message in messages]
    if not any(wrong):
        return messages
    if keeps_newest:
        last = len(wrong) - 1 - wrong[::-1].index(True)
        while last >= 0 and wrong[last]:  # a native reply has one rejection for each call
            wrong[last] = False
            last -= 1
    return [
        message
        for message, is_wrong, was_wrong in zip(messages, wrong, (*wrong[1:], False), strict=True)
        if not is_wrong and not (was_wrong and message.role == "assistant")
    ]


def as_known(messages: Sequence[Message], nonce: str) -> Iterator[Message]:
    """Turn results into user messages that state facts, and drop their calls."""
    calls: dict[str, NativeCall] = {}
    goes_on = False
    for message, following in zip_longest(messages, messages[1:]):
        if message.role == "assistant" and (message.calls or _has_results(following)):
            calls |= {call.id: call for call in message.calls}
            if message.calls and message.content.strip():
                yield replace(message, calls=(), reasoning="")
            continue
        is_known = message.role == "tool" or _has_results(message)
        if is_known:
            text = without_reader(_known(message, calls, nonce))
            yield Message("user", text if goes_on else f"{prompt.KNOWN}\n\n{text}")
        else:
            yield message
        goes_on = is_known


def _known(message: Message, calls: Mapping[str, NativeCall], nonce: str) -> str:
    if message.role == "tool":
        source = prompt.native_source(calls.get(message.call_id or ""))
        return f"{source}:\n{prompt.marked(message.content, nonce)}"
    places = zip(message.sources, message.results, strict=True)
    facts = (
        f"{source}:\n{prompt.marked(message.content[start:end], nonce)}"
        for source, (start, end) in places
    )
    return "\n\n".join(facts) or message.content


def _has_results(message: Message | None) -> bool:
    return bool(message and message.role == "user" and _RESULTS.match(message.content))
