"""Asks another agent of ours for a run of its own and what is below it, over its HTTP API."""

import asyncio
from urllib.parse import quote

import httpx
import orjson

from diptych.a2a.peer import ResolvedPeer
from diptych.a2a.tree import read_tree
from diptych.core.errors import DelegationError
from diptych.core.messages import JSON
from diptych.net.received import TooMuchReceived, read_bounded
from diptych.net.redaction import SECRETS
from diptych.ports import ChildRef

SECONDS, SECONDS_PER_LEVEL = 1.0, 1.5  # an agent must answer before the one that asks it gives up
MAX_BYTES = 2 * 1024 * 1024


async def fetch_tree(
    http: httpx.AsyncClient, peer: ResolvedPeer, headers: dict[str, str], child: ChildRef
) -> JSON:
    """Give the tree of a run at another agent. Raises `DelegationError`.

    `headers` are those by which the agent knows us: the run is ours there, or it is not found.
    """
    if not peer.speaks_extension:
        raise DelegationError("refused", "the agent is none of ours")
    if child.url and child.url != peer.base_url:
        raise DelegationError("refused", "an agent of this name is at another place now")
    try:
        async with asyncio.timeout(SECONDS + SECONDS_PER_LEVEL * (child.depth + 1)):
            run_id = child.task_id or await _run_of_context(http, peer, headers, child.context_id)
            path = f"{peer.base_url}/v1/runs/{quote(run_id, safe='')}/tree?depth={child.depth}"
            found = read_tree(await _get(http, path, headers), child.depth)
    except TimeoutError as error:
        raise DelegationError("timeout", "the agent did not answer in time") from error
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise DelegationError("unavailable", "the agent cannot be reached") from error
    if found is None:
        raise DelegationError("failed", "the agent gave no tree")
    shown: JSON = SECRETS.redact_value(found)  # type: ignore[assignment]
    return shown


async def _run_of_context(
    http: httpx.AsyncClient, peer: ResolvedPeer, headers: dict[str, str], context_id: str
) -> str:
    """Find the run of a delegation that is not over: its context is its own."""
    url = f"{peer.base_url}/v1/runs?session_id={quote(context_id, safe='')}&limit=1"
    match await _get(http, url, headers):
        case {"data": [{"id": str(run_id)}, *_]}:
            return run_id
    raise DelegationError("failed", "the agent does not know the task")


async def _get(http: httpx.AsyncClient, url: str, headers: dict[str, str]) -> JSON:
    async with http.stream("GET", url, headers=headers) as response:
        if response.status_code != httpx.codes.OK:
            reason = f"the agent answers HTTP {response.status_code}"
            raise DelegationError("failed", reason)
        try:
            body = await read_bounded(response.aiter_bytes(), MAX_BYTES)
        except TooMuchReceived:
            raise DelegationError("failed", "the agent's tree is too large") from None
    found: JSON = orjson.loads(body)
    return found
