"""What is said to a model about its answer: its form, and why it is asked for again."""

import json
from dataclasses import dataclass

from diptych.core.excerpts import clipped
from diptych.core.messages import JSONObject, Message
from diptych.core.prompt import QUESTION_LIMIT

DIRECT = (
    "If nothing needs to be called any more, do not reply with {}: "
    "write your final answer to the user instead, in plain text."
)
"""Ends phase 1's last message in `answerMode: direct`."""

NOT_AN_ACTION = "Nothing can be called any more: answer in words."
"""Ends the second request for an answer, if the first reply was a call or empty JSON."""

_ANY_OBJECT = (
    "Now provide your final response to the user as one JSON object, without other text and "
    "without a code fence. Do not ask for a tool or an agent any more."
)
_BY_SCHEMA = (
    "Now provide your final response to the user as JSON that fits this JSON schema, without other "
    "text and without a code fence. Do not ask for a tool or an agent any more.\n{schema}"
)
_REPAIR = (
    "That cannot be used: {problem}.\n"
    "Reply with the whole corrected JSON, without other text and without a code fence."
)
_REPAIR_TEXT = (
    "That cannot be used: {problem}.\nReply with the whole corrected answer, and nothing else."
)
_SHOWN = 20_000  # characters of its own answer that a model is shown again


@dataclass(frozen=True, slots=True)
class Repair:
    """An answer that cannot be used, and why; one that `is_text` has no schema."""

    said: str
    problem: str
    is_text: bool = False


def json_prompt(schema: JSONObject, question: str = "") -> str:
    """Ask for the final response as JSON; `{}` is any object. Repeats the question, if any."""
    asked = _ANY_OBJECT
    if schema:
        text = json.dumps(schema, ensure_ascii=False, default=dict)
        asked = _BY_SCHEMA.replace("{schema}", text)
    return f"{asked}\nWhat was asked: {question[:QUESTION_LIMIT]}" if question else asked


def repair_messages(repair: Repair, most: float) -> tuple[Message, Message]:
    """Show a model its answer again, to about the weight `most`, and what was wrong with it."""
    asked = _REPAIR_TEXT if repair.is_text else _REPAIR
    return (
        Message("assistant", clipped(repair.said[:_SHOWN], most)),
        Message("user", asked.replace("{problem}", repair.problem.rstrip("."))),
    )
