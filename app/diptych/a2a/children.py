"""Passes a decision on to another agent of ours that has the call, or that leads to it.

It is that agent's own route for decisions: it checks us as any other caller.
"""

import asyncio
from contextlib import suppress
from urllib.parse import quote

import httpx
import orjson

from diptych.a2a.peer import ResolvedPeer
from diptych.core.errors import DecisionRefused
from diptych.core.messages import JSON
from diptych.core.text import one_line
from diptych.net.received import TooMuchReceived, read_bounded
from diptych.net.redaction import SECRETS
from diptych.ports import ChildDecision

SECONDS = 40.0  # for all agents on the way down to have it on record
MAX_REPLY_BYTES = 256 * 1024
MAX_MESSAGE_CHARS = 1_000
_CODES = frozenset({"already_decided", "approval_not_found", "run_over", "invalid_arguments"})
_PARAMS = 200  # characters of the path of what is wrong


async def send_decision(
    http: httpx.AsyncClient, peer: ResolvedPeer, headers: dict[str, str], decision: ChildDecision
) -> None:
    """Send a decision. Raises `DecisionRefused`, with the other agent's code where it is known."""
    body: dict[str, JSON] = {
        "decision": decision.decision,
        "reason": decision.reason or None,
        "arguments": decision.arguments,
        "call": decision.call,
        "subject": decision.subject or None,
    }
    content = orjson.dumps({name: value for name, value in body.items() if value is not None})
    run, call = quote(decision.task_id, safe=""), quote(decision.call_id, safe="")
    url = f"{peer.base_url}/v1/runs/{run}/approvals/{call}"
    headers = {**headers, "Content-Type": "application/json"}
    try:
        async with (
            asyncio.timeout(SECONDS),
            http.stream("POST", url, content=content, headers=headers) as response,
        ):
            reply: bytes | None = None
            with suppress(TooMuchReceived):  # of arguments: its status says enough
                reply = await read_bounded(response.aiter_bytes(), MAX_REPLY_BYTES)
    except (TimeoutError, httpx.HTTPError, httpx.InvalidURL) as error:
        message = f"agent {decision.agent}, which leads to the call, cannot be reached: try again"
        raise DecisionRefused(message, code="agent_unavailable") from error
    if response.status_code not in (httpx.codes.OK, httpx.codes.ACCEPTED):
        raise _refusal(decision.agent, response.status_code, reply or b"")
    if reply is not None and not _is_approval(reply):
        message = f"agent {decision.agent}: what answers there knows nothing of approvals"
        raise DecisionRefused(message, code="agent_unavailable")


def _is_approval(reply: bytes) -> bool:
    """Whether our route has answered, and not a proxy's page that says 200 to anything."""
    try:
        return bool(orjson.loads(reply)["object"] == "approval")
    except (ValueError, TypeError, KeyError):
        return False


def _refusal(agent: str, status: int, reply: bytes) -> DecisionRefused:
    try:
        error = orjson.loads(reply)["error"]
        message, code, param = error["message"], error["code"], error["param"]
    except (ValueError, TypeError, KeyError):
        message, code, param = f"HTTP {status}", None, None
    text = one_line(SECRETS.redact(str(message)), MAX_MESSAGE_CHARS)
    if status >= httpx.codes.INTERNAL_SERVER_ERROR or status == httpx.codes.TOO_MANY_REQUESTS:
        return DecisionRefused(f"agent {agent}: {text}", code="agent_unavailable")
    known = code if isinstance(code, str) and code in _CODES else "decision_refused"
    place = one_line(param, _PARAMS) if isinstance(param, str) else None
    said = text if known == "already_decided" else f"agent {agent} refuses the decision: {text}"
    return DecisionRefused(said, param=place, code=known)
