"""A decision is passed on to whatever answers at an agent's address: only an approval says yes."""

from typing import cast
from unittest.mock import Mock

import httpx
import orjson
import pytest

from diptych.a2a.children import send_reply
from diptych.a2a.peer import ResolvedPeer
from diptych.core.errors import DecisionRefused
from diptych.ports import ChildReply

PEER = cast("ResolvedPeer", Mock(spec=ResolvedPeer, base_url="http://worker"))
DECISION = ChildReply(
    "worker", "http://worker", "run-1", "call_1_1", "approval", {"decision": "approve"}
)


async def decide(status: int, body: bytes) -> None:
    answer = httpx.MockTransport(lambda _: httpx.Response(status, content=body))
    async with httpx.AsyncClient(transport=answer) as http:
        await send_reply(http, PEER, {}, DECISION)


@pytest.mark.parametrize("body", [b"<html>Sign in</html>", b'{"object": "run"}'])
async def test_what_is_no_approval_does_not(body: bytes) -> None:
    with pytest.raises(DecisionRefused, match="does not support approvals") as refused:
        await decide(200, body)
    assert refused.value.code == "agent_unavailable"


@pytest.mark.parametrize(
    ("status", "said", "code", "told"),
    [
        (409, "already_decided", "already_decided", "so it is"),
        (403, "forbidden", "decision_refused", "agent worker refuses it: so it is"),
        (429, "rate_limited", "agent_unavailable", "agent worker: so it is"),
        (503, "store_away", "agent_unavailable", "agent worker: so it is"),
    ],
)
async def test_a_refusal_says_whether_to_try_again(
    status: int, said: str, code: str, told: str
) -> None:
    error = {"message": "so it is", "code": said, "param": None}
    with pytest.raises(DecisionRefused) as refused:
        await decide(status, orjson.dumps({"error": error}))
    assert (refused.value.code, refused.value.message) == (code, told)
