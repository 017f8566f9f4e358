"""Decisions and answers of A2A clients: a data part in a message to the task of the waiting call.

    {"call_id": "call_1_1", "decision": "approve"}
    {"call_id": "call_1_1", "action": "accept", "content": {"name": "Ada"}}

The other fields are those of the HTTP API, and so are the rights.
"""

from typing import Any, cast

from a2a.types import Message
from a2a.utils.errors import InvalidParamsError
from pydantic import ValidationError

from diptych.a2a import extension
from diptych.a2a.parts import sent_json
from diptych.http.errors import first_problem
from diptych.http.waits import AnswerBody, DecisionBody, GuardedWaits
from diptych.runs.service import RunService
from diptych.runs.waits import Reply


class Replies:
    """Passes on the decisions and answers in messages."""

    def __init__(self, runs: RunService) -> None:
        self._waits = GuardedWaits(runs)

    async def take(self, message: Message) -> bool:
        """Pass on a message's decision or answer; return False if it has none.

        Raises A2A errors, and as `GuardedWaits.answer`.
        """
        fields = _fields(message)
        if fields is None:
            return False
        call_id, run_id = str(fields.pop("call_id")), message.task_id
        try:
            if "decision" in fields:
                reply: Reply = DecisionBody.model_validate(fields).request()
            else:
                reply = AnswerBody.model_validate(fields).reply()
        except ValidationError as error:
            raise first_problem(cast("Any", error.errors())) from None
        await self._waits.answer(run_id, call_id, reply)
        return True


def _fields(message: Message) -> dict[str, Any] | None:
    """Return the fields of a decision or an answer; None if the message is neither."""
    for part in message.parts:
        if not part.HasField("data") or extension.URI in part.metadata:
            continue
        match sent_json(part.data):
            case {"call_id": str(), "decision": _} | {"call_id": str(), "action": _} as fields:
                if len(message.parts) > 1:
                    raise InvalidParamsError("an answer must be the only part of its message")
                return dict(fields)
    return None
