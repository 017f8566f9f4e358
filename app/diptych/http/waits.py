"""`/v1/approvals` and `/v1/inputs`: the calls that wait, decisions on them, and answers.

Without `approve` or `read`, other callers' runs look unknown. Callers cannot decide on runs that
they or their delegates started, unless the manifest sets `access.approveOwn`. A question is for the
subject that started the run, and for those who may `manage` runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import ConfigDict, Field
from starlette.responses import Response

from diptych.access.caller import Caller, ForeignRun, OwnRun, current_caller
from diptych.access.grants import Right
from diptych.core.codec import Record
from diptych.core.errors import InvalidRequest, RunLost, RunNotFound
from diptych.core.events import InputAction, WaitKind
from diptych.core.text import well_formed
from diptych.core.waits import Wait, open_waits, waits_of
from diptych.http.audit import What, audited
from diptych.http.bodies import Body, json_router
from diptych.http.guarded_runs import own_entries
from diptych.http.openapi import reply
from diptych.http.views import approval_view, input_view
from diptych.ports.entries import RunEntry
from diptych.runs.approvals import DecisionRequest
from diptych.runs.inputs import InputReply
from diptych.runs.service import RunService
from diptych.runs.waits import Reply, find_open

Limit = Annotated[int, Query(ge=1, le=1_000, description="How many runs, at most.")]
_DECIDED = reply(
    "Approval",
    "The approval, decided; or `closed`, if the run ended while it was decided below.",
    403,
    409,
    422,
    accepted="The agent below that has the call has decided so; this run does not know it yet.",
)
_ANSWERED = reply(
    "Input",
    "The question, answered; or `closed`, if the run ended while it was answered below.",
    403,
    409,
    422,
    accepted="The agent below that has the call took the answer; this run does not know it yet.",
)
_AUDITED: Mapping[WaitKind, tuple[Right, What]] = {
    "approval": (Right.APPROVE, "decide"),
    "input": (Right.ASK, "answer"),
}
_ANSWERED_ELSEWHERE = {
    "sign_in": "sign in as the question says; here it can only be declined or cancelled",
    "caller_tool": "its caller answers it, with the tool's result in the next chat request",
}


class DecisionBody(Body):
    """`POST /v1/runs/{id}/approvals/{call_id}`. A field that is null counts as absent."""

    model_config = ConfigDict(extra="forbid")

    decision: Literal["approve", "reject", "edit", "replace"] = Field(
        description="`approve`: make the call. `reject`: make none. `edit`: make it with other "
        "`arguments`. `replace`: make another `call` in its place."
    )
    reason: str | None = Field(
        None, max_length=4096, description="Of a rejection: the model reads it."
    )
    arguments: dict[str, Any] | None = Field(
        None, description='Of `edit`: the new arguments; of a delegation `{"task": text}`.'
    )
    call: dict[str, Any] | None = Field(
        None,
        description='Of `replace`: `{"tool": name, "arguments": {…}}` or '
        '`{"agent": name, "task": text}`.',
    )
    subject: str | None = Field(
        None,
        max_length=512,
        description="Of an agent that passes a decision on: whose it is. It is recorded beside the "
        "agent, and gives no right.",
    )

    def request(self) -> DecisionRequest:
        """Return the decision that this asks for."""
        reason, subject = well_formed(self.reason or ""), well_formed(self.subject or "")
        return DecisionRequest(self.decision, reason, self.arguments, self.call, subject)


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


def wait_routes(runs: RunService) -> APIRouter:
    """Return the routes of approvals and questions."""
    router = json_router()
    waits = GuardedWaits(runs)

    @router.get("/v1/approvals", **reply("ApprovalList", "The calls that wait."))
    async def list_approvals(limit: Limit = 100) -> dict[str, Any]:
        """List the calls that wait for a decision, on all replicas."""
        found = await waits.open_waits("approval", limit)
        return {"object": "list", "data": [approval_view(each) for each in found]}

    @router.post("/v1/runs/{run_id}/approvals/{call_id}", **_DECIDED)
    async def decide(
        response: Response, run_id: str, call_id: str, body: DecisionBody
    ) -> dict[str, Any]:
        """Decide on a waiting call, whichever replica executes its run.

        The first decision counts; the reply comes once it is recorded.
        """
        found = await waits.answer(run_id, call_id, body.request())
        if found.is_open:
            response.status_code = 202  # decided below, and known here as soon as that comes up
        return {"decision": body.decision, **approval_view(found)}

    @router.get("/v1/inputs", **reply("InputList", "The questions."))
    async def list_inputs(limit: Limit = 100) -> dict[str, Any]:
        """List the questions of calls that wait for an answer, on all replicas."""
        found = await waits.open_waits("input", limit)
        return {"object": "list", "data": [input_view(each) for each in found]}

    @router.post("/v1/runs/{run_id}/inputs/{call_id}", **_ANSWERED)
    async def answer(
        response: Response, run_id: str, call_id: str, body: AnswerBody
    ) -> dict[str, Any]:
        """Answer the open question of a call, whichever replica executes its run.

        The first answer counts; the reply comes once it is recorded. Nothing shows its content.
        """
        found = await waits.answer(run_id, call_id, body.reply())
        if found.is_open:
            response.status_code = 202  # answered below, and known here as soon as that comes up
        return input_view(found)

    return router


class GuardedWaits:
    """Approvals and questions of an agent's runs, filtered by the current caller's rights."""

    def __init__(self, runs: RunService) -> None:
        self._runs = runs

    async def open_waits(self, kind: WaitKind, limit: int) -> Sequence[Wait]:
        """List the open waits of one kind in up to `limit` visible runs, newest run first."""
        caller, found = current_caller(), list[Wait]()
        right = Right.APPROVE if kind == "approval" else Right.MANAGE
        if caller.may(right) or caller.may(Right.READ):
            entries = await self._runs.waiting_runs(limit)
        else:
            entries = await own_entries(caller, self._runs.waiting_runs, None, limit)
        for entry in entries:
            try:
                found += open_waits(await self._runs.records(entry.run_id), kind)
            except (RunNotFound, RunLost):
                continue  # it was removed meanwhile
        return found

    async def answer(self, run_id: str, call_id: str, given: Reply) -> Wait:
        """Decide on a call, or answer its question; see `RunService.answer`.

        Raises `Forbidden`, `RunNotFound` too.
        """
        caller = current_caller()
        given = _of_caller(given, caller)
        with audited(caller, *_AUDITED[given.kind], run_id) as noted:
            noted.call = call_id
            entry = await self._runs.entry(run_id)
            (_check_may_decide if given.kind == "approval" else _check_may_answer)(caller, entry)
            records = await self._runs.records(run_id)
            if isinstance(given, DecisionRequest):
                _check_not_own(caller, records[0], given)
            asked = find_open(records, call_id, given.kind).requested
            if isinstance(given, DecisionRequest):
                noted.decision, noted.why = given.decision, given.reason
            else:
                _check_answerable(asked, given)
                noted.decision = given.action
            records = await self._runs.answer(run_id, call_id, given)
            noted.outcome = noted.decision
        return next(wait for wait in waits_of(records) if wait.requested.seq == asked.seq)


def _check_may_decide(caller: Caller, entry: RunEntry) -> None:
    if not caller.may(Right.APPROVE):
        if not (caller.may(Right.READ) or (caller.rights and caller.owns(entry.session_id))):
            raise RunNotFound
        caller.require(Right.APPROVE)


def _check_not_own(caller: Caller, first: Record, given: DecisionRequest) -> None:
    if caller.subject is None or caller.approves_own:
        return
    # A caller's word for whom it works lets nobody decide on what it began itself; but an
    # agent that may approve passes on what somebody else has decided (decision 153).
    subject, began = (first.metadata.get(name) for name in ("subject", "caller"))
    if given.subject in {subject, began}:
        raise OwnRun(is_on_behalf=bool(began) and given.subject != began)


def _check_may_answer(caller: Caller, entry: RunEntry) -> None:
    if caller.may(Right.MANAGE):
        return
    if not caller.owns(entry.session_id):
        if caller.may(Right.READ):
            raise ForeignRun
        raise RunNotFound
    caller.require(Right.ASK)


def _check_answerable(asked: Record, given: InputReply) -> None:
    """Raise `InvalidRequest` for an answer that does not come this way."""
    kind = str(asked.metadata["kind"])
    if kind == "caller_tool" or (kind == "sign_in" and given.action == "accept"):
        raise InvalidRequest(_ANSWERED_ELSEWHERE[kind], param="action")


def _of_caller(given: Reply, caller: Caller) -> Reply:
    """Return a decision or an answer in the caller's name, or in that of the subject for whom an
    agent passes it on. Only agents may pass them on.
    """
    if caller.subject is None:
        return replace(given, subject="", caller="")
    if given.subject and caller.subject.kind == "agent":
        return replace(given, caller=str(caller.subject))
    return replace(given, subject=str(caller.subject), caller="")
