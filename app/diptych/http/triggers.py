"""`POST /v1/triggers/{name}`: a delivery of another program (a webhook) starts a run.

A signed delivery passes the access guard; its signature proves the subject `trigger:<name>`, which
may only ask. The delivery's id is the idempotency key, so that a delivery that is sent twice starts
one run.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Request, Response

from diptych.access.caller import Caller, set_caller
from diptych.access.grants import Right, Subject
from diptych.access.signatures import (
    DELIVERY_HEADERS,
    SECRET_HEADERS,
    InvalidSignature,
    verify,
)
from diptych.core.errors import InvalidRequest, RequestError
from diptych.core.messages import Message
from diptych.http.audit import write_line
from diptych.http.bodies import json_router, parsed
from diptych.http.guarded_runs import GuardedRuns
from diptych.http.openapi import reply
from diptych.http.run_request import idempotency_key, origin, read_idempotency_key
from diptych.http.views import run_view
from diptych.manifest.settings import TriggerConfig
from diptych.runs.request import RunRequest
from diptych_cel.expressions import DeliveryFacts, EvaluationFailed, Expression

TRIGGERS_PATH = "/v1/triggers/"
_MAX_DELIVERY_ID = 255
_STARTED = reply(
    "Run", "The run, or the one that the same delivery started.", 400, 413, 415, 422, status=202
)
_SKIPPED = {"description": '`{"skipped": true}`: the trigger\'s `when` is false.'}
_STARTED["responses"][200] = _SKIPPED


def signed_paths(triggers: Sequence[TriggerConfig]) -> frozenset[str]:
    """Return the paths whose POST requests prove themselves by a signature."""
    return frozenset(TRIGGERS_PATH + one.name for one in triggers if one.signature != "none")


def trigger_routes(runs: GuardedRuns, triggers: Sequence[TriggerConfig]) -> APIRouter:
    """Return the route of all triggers."""
    router = json_router()
    by_name = {trigger.name: trigger for trigger in triggers}

    @router.post("/v1/triggers/{name}", **_STARTED)
    async def start_by_trigger(request: Request, name: str, response: Response) -> dict[str, Any]:
        """Start a run by a webhook, whose JSON body the trigger's CEL turns into a message.

        The delivery's id is the idempotency key: `webhook-id`, `X-GitHub-Delivery`,
        `X-Gitlab-Event-UUID`, else `Idempotency-Key`.
        """
        trigger = by_name.get(name)
        if trigger is None:
            raise RequestError("there is no trigger with this name", code="trigger_not_found")
        headers = {key.lower(): value for key, value in request.headers.items()}
        body = await request.body()
        if trigger.signature != "none":
            _authenticate(trigger, headers, body)
        facts = DeliveryFacts(await parsed(body), _without_secrets(headers))
        if trigger.when and not _evaluated(trigger, "when", facts):
            response.status_code = 200
            return {"skipped": True}
        return run_view(await runs.start(await _run_request(request, trigger, facts)))

    return router


def _authenticate(trigger: TriggerConfig, headers: Mapping[str, str], body: bytes) -> None:
    """Set the caller to the trigger, if the delivery's signature is right."""
    secret = (trigger.secret() if trigger.secret else None) or ""
    subject = Subject("trigger", trigger.name)
    try:
        if not secret:
            raise RequestError("the trigger's secret is missing", code="secret_missing")
        verify(trigger.signature, secret, headers, body, time.time())
    except InvalidSignature as error:
        line = {"subject": str(subject), "right": "ask", "outcome": "refused", "why": str(error)}
        write_line(logging.WARNING, line)
        raise RequestError(str(error), code="invalid_signature") from None
    except ValueError as error:
        message = f"the trigger's secret is {error}"
        raise RequestError(message, code="secret_missing") from None
    set_caller(Caller(subject, frozenset({Right.ASK})))


def _without_secrets(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name not in SECRET_HEADERS}


def _evaluated(trigger: TriggerConfig, field: str, facts: DeliveryFacts) -> bool | str:
    expression: Expression = getattr(trigger, field)
    try:
        return expression.holds(facts) if field == "when" else expression.text_of(facts)
    except EvaluationFailed as error:
        message = f"trigger {trigger.name}: {field} failed for this delivery: {error}"
        raise InvalidRequest(message, param=field) from None


async def _run_request(
    request: Request, trigger: TriggerConfig, facts: DeliveryFacts
) -> RunRequest:
    message = str(_evaluated(trigger, "message", facts))
    if not message.strip():
        raise InvalidRequest(f"trigger {trigger.name}: message is empty", param="message")
    session = str(_evaluated(trigger, "session", facts)) if trigger.session else None
    key = await read_idempotency_key(request)
    if delivery := request.headers.get(DELIVERY_HEADERS.get(trigger.signature, ""), ""):
        if len(delivery) > _MAX_DELIVERY_ID or not delivery.isprintable():
            raise InvalidRequest("the delivery's id is not 1 to 255 printable characters")
        body = await request.body()
        key = idempotency_key(f"trigger:{trigger.name}", delivery, body)
    return RunRequest(
        (Message("user", message),),
        session_id=session,
        origin=origin(request.headers),
        idempotency_key=key,
    )
