"""`/v1/inputs`, and answers to the questions of calls.

A question is for the subject that started the run, and for those who may `manage` runs. To others
without `read`, the run looks unknown.
"""

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter
from pydantic import ConfigDict, Field
from starlette.responses import Response

from diptych.access.caller import Caller, ForeignRun, current_caller
from diptych.access.grants import Right
from diptych.core.errors import InvalidRequest, RunNotFound
from diptych.core.events import InputAction
from diptych.core.text import well_formed
from diptych.core.waits import Wait, inputs_of
from diptych.http.approvals import Limit, of_caller, visible_waits
from diptych.http.audit import audited
from diptych.http.bodies import Body, json_router
from diptych.http.openapi import reply
from diptych.http.views import input_view
from diptych.runs.inputs import InputReply, find_input
from diptych.runs.service import RunService

_ANSWERED = reply(
    "Input",
    "The question, answered; or `closed`, if the run ended while it was answered below.",
    403,
    409,
    422,
    accepted="The agent below that has the call took the answer; this run does not know it yet.",
)
_ANSWERED_ELSEWHERE = {
    "sign_in": "sign in as the question says; here it can only be declined or cancelled",
    "caller_tool": "its caller answers it, with the tool's result in the next chat request",
}


class AnswerBody(Body):
    """`POST /v1/runs/{id}/inputs/{call_id}`. A field that is null counts as absent."""

    model_config = ConfigDict(extra="forbid")

    action: InputAction = Field(
        description="`accept`: with the `content` of a form, or after the page was visited. "
        "`decline`: the person refuses. `cancel`: the person does not want to answer now."
    )
    content: dict[str, Any] | None = Field(
        None, description="Of an accepted form: the values, which match the question's `schema`."
    )
    subject: str | None = Field(
        None,
        max_length=512,
        description="Of an agent that passes an answer on: whose it is. It is recorded beside the "
        "agent, and gives no right.",
    )

    def reply(self) -> InputReply:
        """Return the answer that this gives."""
        return InputReply(self.action, self.content, well_formed(self.subject or ""))


def input_routes(runs: RunService) -> APIRouter:
    """Return the routes of questions."""
    router = json_router()
    inputs = GuardedInputs(runs)

    @router.get("/v1/inputs", **reply("InputList", "The questions."))
    async def list_inputs(limit: Limit = 100) -> dict[str, Any]:
        """List the questions of calls that wait for an answer, on all replicas."""
        found = await inputs.open_inputs(limit)
        return {"object": "list", "data": [input_view(each) for each in found]}

    @router.post("/v1/runs/{run_id}/inputs/{call_id}", **_ANSWERED)
    async def answer(
        response: Response, run_id: str, call_id: str, body: AnswerBody
    ) -> dict[str, Any]:
        """Answer the open question of a call, whichever replica executes its run.

        The first answer counts; the reply comes once it is recorded. Nothing shows its content.
        """
        found = await inputs.answer(run_id, call_id, body.reply())
        if found.is_open:
            response.status_code = 202  # answered below, and known here as soon as that comes up
        return input_view(found)

    return router


class GuardedInputs:
    """Questions of an agent's runs, filtered by the current caller's rights."""

    def __init__(self, runs: RunService) -> None:
        self._runs = runs

    async def open_inputs(self, limit: int) -> Sequence[Wait]:
        """List the open questions of up to `limit` visible runs, newest run first."""
        waits = await visible_waits(self._runs, limit, Right.MANAGE)
        return [wait for wait in waits if not wait.is_for_approval]

    async def answer(self, run_id: str, call_id: str, given: InputReply) -> Wait:
        """Answer a question; see `RunService.answer`. Raises `Forbidden`, `RunNotFound` too."""
        caller = current_caller()
        with audited(caller, Right.ASK, "answer", run_id) as noted:
            noted.call = call_id
            await self._check_may_answer(caller, run_id)
            asked = find_input(await self._runs.records(run_id), call_id).requested
            kind = str(asked.metadata["kind"])
            if kind == "caller_tool" or (kind == "sign_in" and given.action == "accept"):
                raise InvalidRequest(_ANSWERED_ELSEWHERE[kind], param="action")
            noted.decision = given.action
            records = await self._runs.answer(run_id, call_id, of_caller(given, caller))
            noted.outcome = given.action
        return next(wait for wait in inputs_of(records) if wait.requested.seq == asked.seq)

    async def _check_may_answer(self, caller: Caller, run_id: str) -> None:
        entry = await self._runs.entry(run_id)
        if caller.may(Right.MANAGE):
            return
        if not caller.owns(entry.session_id):
            if caller.may(Right.READ):
                raise ForeignRun
            raise RunNotFound
        caller.require(Right.ASK)
