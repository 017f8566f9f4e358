"""Renders a run as model requests (loop.md §2 "What is sent", §4).

The log keeps the conversation as it happened; requests take the form that chat templates accept:
the user begins, and no role comes twice in a row. Native messages become text if the request is not
for native calls: in the JSON format, and for the answer (decision 74). The instructions of a phase
end the user's last message, and are not kept, so that the system prompt is the same in both phases.
Native phase-1 requests have none.
"""

import json
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from operator import attrgetter
from typing import Final

from diptych.core import prompt
from diptych.core.catalog import SHARE, shorter_catalogs
from diptych.core.excerpts import clipped
from diptych.core.known import as_known, without_rejections
from diptych.core.messages import JSONObject, Message, NativeCall
from diptych.core.model_request import FunctionTool, ModelRequest, functions_weight
from diptych.core.state import Run, sent_messages
from diptych.core.tokens import weight

ANSWER_PARAMETERS: Final = frozenset({"stop", "max_tokens", "logit_bias"})
"""Request parameters for the answer only: in phase 1 they would truncate or distort a call's
JSON."""

_SUMMARIZED = 0.6  # share of the window for a conversation to summarize
_LONGEST = 0.2  # of that, for one message
_REPAIRED = 0.25  # share of the window for an answer to repair


def action_request(run: Run, *, may_answer: bool = False) -> ModelRequest:
    """Return a phase-1 request; with `may_answer`, the model may answer directly."""
    if run.action_format == "native":
        return _native_action_request(run)
    rules = prompt.action_rules(run.catalog, "" if _has_results(run) else run.asked.text)
    if rules and may_answer:
        rules = f"{rules}\n\n{prompt.DIRECT}"
    said = without_rejections(sent_messages(run), keeps_newest=True)
    history = joined(without_native_calls(said, run.nonce))
    sent = _append_to_user(list(opened_by_user(history)), rules)
    return _request(run, sent, _step_parameters(run))


def answer_request(run: Run) -> ModelRequest:
    """Return a phase-2 request."""
    schema = run.output_schema
    said = without_rejections(sent_messages(run))
    known = [*as_known(said, run.nonce)]
    if run.draft.asked_again:
        sent: Sequence[Message] = _plain(run, known, own=said)
    else:
        question = run.asked.text if _has_results(run) else ""
        final = (
            prompt.final_prompt(question)
            if schema is None
            else prompt.json_prompt(schema, question)
        )
        sent = _append_to_user(list(opened_by_user(joined(known))), final)
    max_weight = run.window.weight(_REPAIRED)
    repair = prompt.repair_messages(run.draft.repair, max_weight) if run.draft.repair else ()
    request = _request(run, (*sent, *repair), run.request.parameters)
    return request if schema is None else replace(request, output_schema=schema)


def _plain(run: Run, known: Sequence[Message], own: Sequence[Message]) -> tuple[Message, ...]:
    """Ask once more in a plain form: the facts, then the question.

    At temperature 0, the same context yields the same reply, so the first form is not repeated.
    """
    ids = {id(message) for message in own}
    turns = range(len(known), 0, -1)
    turn = next((n for n in turns if known[n - 1].role == "assistant"), 0)
    results = [message for message in known[turn:] if id(message) not in ids]
    asked = [message for message in known[turn:] if id(message) in ids]
    earlier = [Message("user", prompt.transcript(known[:turn]))] if turn else []
    request = ""
    if run.output_schema is not None:
        request = prompt.json_prompt(run.output_schema)
    elif run.draft.asked_again == "action":
        request = prompt.NOT_AN_ACTION
    if not asked:
        asked = [Message("user", run.asked.text)]
    return joined((*earlier, *results, *asked, Message("user", request)))


def summary_request(run: Run, messages: Sequence[Message]) -> ModelRequest:
    """Return the request to summarize messages, limited to the window; the newest come first."""
    left = run.window.weight(_SUMMARIZED)
    max_weight = left * _LONGEST
    lines: list[str] = []
    for message in reversed([*without_native_calls(messages, run.nonce)]):
        line = f"{message.role.capitalize()}: {clipped(message.content, max_weight)}"
        left -= weight(line)
        if left < 0:
            break
        lines.append(line)
    written = prompt.summary_prompt("\n\n".join(reversed(lines)))
    sent = (Message("user", written),)
    return ModelRequest(sent, run.model_calls, parameters=_step_parameters(run))


def without_native_calls(messages: Iterable[Message], nonce: str = "") -> Iterator[Message]:
    """Write native calls and their results as text, as the JSON format does."""
    names: dict[str, str] = {}
    for message in messages:
        if message.role == "tool":
            name = names.get(message.call_id or "", "a tool")
            result = prompt.marked(message.content, nonce)
            yield Message("user", f"Result of tool {name}:\n{result}")
        elif message.calls:
            names |= {call.id: call.name for call in message.calls}
            written = "\n".join(map(_call_text, message.calls))
            content = "\n\n".join(filter(None, (message.content, written)))
            yield replace(message, content=content, calls=(), reasoning="")
        else:
            yield message


def with_whole_calls(messages: Iterable[Message], nonce: str = "") -> Iterator[Message]:
    """Write native calls as text unless each has its result right after it.

    APIs reject a call without a result, and a result without a call.
    """
    rest = deque(messages)
    while rest:
        message = rest.popleft()
        if not message.calls and message.role != "tool":
            yield message
            continue
        group = [message]
        while rest and rest[0].role == "tool":
            group.append(rest.popleft())
        asked = [call.id for call in message.calls]
        is_whole = bool(asked) and asked == [answer.call_id for answer in group[1:]]
        yield from group if is_whole else without_native_calls(group, nonce)


def joined(messages: Iterable[Message]) -> tuple[Message, ...]:
    """Join adjacent messages of one role: many chat templates reject two in a row."""
    every = tuple(messages)
    if all(one.role != other.role or one.role == "tool" for one, other in pairwise(every)):
        return every
    joint: list[Message] = []
    for role, group in groupby(every, attrgetter("role")):
        neighbours = list(group)
        if role == "tool" or len(neighbours) == 1:
            joint += neighbours
        else:
            joint.append(_join(neighbours))
    return tuple(joint)


def opened_by_user(messages: Sequence[Message]) -> Sequence[Message]:
    """Make a conversation begin with the user: some chat templates reject any other."""
    if messages and messages[0].role != "user":
        return (Message("user", prompt.OPENING), *messages)
    return messages


def _has_results(run: Run) -> bool:
    """Whether results follow the question; rejections do not count."""
    return run.asked.end < 0 or bool(without_rejections(run.messages[run.asked.end :]))


def _request(run: Run, sent: Iterable[Message], parameters: JSONObject) -> ModelRequest:
    system = (Message("system", run.system),) if run.system else ()
    return ModelRequest((*system, *sent), run.model_calls, parameters=parameters)


def _append_to_user(messages: list[Message], text: str) -> list[Message]:
    """Append a phase's instructions, which are not kept, to the user's last message."""
    if text:
        last = next(n for n in reversed(range(len(messages))) if messages[n].role == "user")
        content = f"{messages[last].content}\n\n{text}" if messages[last].content else text
        messages[last] = replace(messages[last], content=content)
    return messages


def _join(messages: Sequence[Message]) -> Message:
    return replace(
        messages[0],
        content="\n\n".join(filter(None, (message.content for message in messages))),
        calls=tuple(call for message in messages for call in message.calls),
        parts=tuple(part for message in messages for part in message.parts),
        reasoning="\n\n".join(filter(None, (message.reasoning for message in messages))),
    )


def _native_action_request(run: Run) -> ModelRequest:
    said = joined(with_whole_calls(sent_messages(run), run.nonce))
    system = (Message("system", run.system),) if run.system else ()
    sent = (*system, *opened_by_user(said))
    parameters = _step_parameters(run)
    return ModelRequest(
        sent, run.model_calls, tools=_functions(run), parameters=parameters, nonce=run.nonce
    )


def _functions(run: Run) -> tuple[FunctionTool, ...]:
    """Return the catalog's functions, described as briefly as the window requires."""
    if run.window.limit is None:
        return run.catalog.functions.tools
    max_weight, shorter = run.window.weight(SHARE), shorter_catalogs(run.catalog)
    functions = next(shorter).functions.tools
    while functions_weight(functions) > max_weight and (catalog := next(shorter, None)) is not None:
        functions = catalog.functions.tools
    return functions


def _step_parameters(run: Run) -> JSONObject:
    return {name: v for name, v in run.request.parameters.items() if name not in ANSWER_PARAMETERS}


def _call_text(call: NativeCall) -> str:
    try:
        arguments = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):  # from the caller's history, not parsed yet
        arguments = call.arguments
    return json.dumps({"tool": call.name, "arguments": arguments}, ensure_ascii=False)
