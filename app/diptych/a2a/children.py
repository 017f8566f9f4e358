"""Calls Diptych agents over their HTTP API: passes decisions and answers on, fetches run trees.

They authorize these calls like any other; we send the credentials that we delegate with.
"""

import asyncio
from typing import Any
from urllib.parse import quote

import httpx
import orjson

from diptych.a2a.peer import ResolvedPeer
from diptych.core.errors import DecisionRefused, DelegationError
from diptych.core.messages import JSON
from diptych.core.text import one_line
from diptych.net.received import TooMuchReceived, read_bounded
from diptych.net.redaction import SECRETS
from diptych.ports import ChildRef, ChildReply

DECISION_SECONDS = 40.0  # until all agents on the way down have recorded it
TREE_SECONDS, TREE_SECONDS_PER_LEVEL = 1.0, 1.5  # an agent answers before its caller gives up
MAX_REPLY_BYTES = 2 * 1024 * 1024
MAX_MESSAGE_CHARS = 1_000
MAX_PARAM_CHARS = 200
_SECOND = frozenset({"already_decided", "already_answered"})
_CODES = _SECOND | {"approval_not_found", "input_not_found", "run_over", "invalid_arguments"}


async def send_reply(
    http: httpx.AsyncClient, peer: ResolvedPeer, headers: dict[str, str], given: ChildReply
) -> None:
    """Send a decision or an answer.

    Raises `DecisionRefused`, with the other agent's error code if it sent one.
    """
    content = orjson.dumps(given.body)
    path = f"/v1/runs/{_quoted(given.task_id)}/{given.kind}s/{_quoted(given.call_id)}"
    headers = {**headers, "Content-Type": "application/json"}
    try:
        async with asyncio.timeout(DECISION_SECONDS):
            status, reply = await _ask(http, "POST", peer.base_url + path, headers, content)
    except (TimeoutError, httpx.HTTPError, httpx.InvalidURL) as error:
        message = f"agent {given.agent}, which leads to the call, cannot be reached: try again"
        raise DecisionRefused(message, code="agent_unavailable") from error
    if status not in (httpx.codes.OK, httpx.codes.ACCEPTED):
        raise _refusal(given.agent, status, reply)
    if not (isinstance(reply, dict) and reply.get("object") == given.kind):  # a proxy's page
        message = f"agent {given.agent} does not support {given.kind}s"
        raise DecisionRefused(message, code="agent_unavailable")


async def fetch_tree(
    http: httpx.AsyncClient, peer: ResolvedPeer, headers: dict[str, str], child: ChildRef
) -> JSON:
    """Return the tree of a run at another agent. Raises `DelegationError`."""
    if not peer.speaks_extension:
        raise DelegationError("refused", "the agent is none of ours")
    if child.url and child.url != peer.base_url:
        raise DelegationError("refused", "an agent of this name is at another place now")
    runs = f"{peer.base_url}/v1/runs"
    try:
        async with asyncio.timeout(TREE_SECONDS + TREE_SECONDS_PER_LEVEL * (child.depth + 1)):
            run_id = child.task_id
            if not run_id:  # each delegation has a context of its own
                url = f"{runs}?session_id={_quoted(child.context_id)}&limit=1"
                run_id = _only_run(await _ask(http, "GET", url, headers))
            url = f"{runs}/{_quoted(run_id)}/tree?depth={child.depth}"
            status, tree = await _ask(http, "GET", url, headers)
    except TimeoutError as error:
        raise DelegationError("timeout", "the agent did not answer in time") from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise DelegationError("unavailable", "the agent cannot be reached") from error
    if status != httpx.codes.OK:
        raise DelegationError("failed", f"the agent answers HTTP {status}")
    if not (isinstance(tree, dict) and "run_id" in tree):
        raise DelegationError("failed", "the agent gave no tree, or one that is too large")
    return SECRETS.redact_value(tree)  # type: ignore[return-value]


def _only_run(reply: tuple[int, Any]) -> str:
    match reply:
        case httpx.codes.OK, {"data": [{"id": str(run_id)}, *_]}:
            return run_id
    raise DelegationError("failed", "the agent does not know the task")


async def _ask(
    http: httpx.AsyncClient,
    method: str,
    url: str,
    headers: dict[str, str],
    content: bytes | None = None,
) -> tuple[int, Any]:
    """Return a reply's status and JSON; None for a body that is too large or not JSON."""
    async with http.stream(method, url, content=content, headers=headers) as response:
        try:
            reply = orjson.loads(await read_bounded(response.aiter_bytes(), MAX_REPLY_BYTES))
        except (TooMuchReceived, ValueError):
            reply = None
    return response.status_code, reply


def _refusal(agent: str, status: int, reply: Any) -> DecisionRefused:  # noqa: ANN401 - JSON
    message, code, param = f"HTTP {status}", None, None
    match reply:
        case {"error": {"message": str(message), "code": code, "param": param}}:
            pass
    text = one_line(SECRETS.redact(message), MAX_MESSAGE_CHARS)
    if status >= httpx.codes.INTERNAL_SERVER_ERROR or status == httpx.codes.TOO_MANY_REQUESTS:
        return DecisionRefused(f"agent {agent}: {text}", code="agent_unavailable")
    known = code if isinstance(code, str) and code in _CODES else "decision_refused"
    place = one_line(param, MAX_PARAM_CHARS) if isinstance(param, str) else None
    said = text if known in _SECOND else f"agent {agent} refuses it: {text}"
    return DecisionRefused(said, param=place, code=known)


def _quoted(text: str) -> str:
    return quote(text, safe="")
