"""A decision is passed on to whatever answers at an agent's address: only an approval says yes."""

from typing import Any, cast
from unittest.mock import Mock

import httpx
import orjson
import pytest

from diptych.a2a.children import send_decision
from diptych.a2a.peer import ResolvedPeer
from diptych.core.errors import DecisionRefused
from diptych.ports import ChildDecision

PEER = cast("ResolvedPeer", Mock(spec=ResolvedPeer, base_url="http://worker"))
DECISION = ChildDecision("worker", "http://worker", "run-1", "call_1_1", "approve")


async def decide(status: int, body: bytes) -> None:
    answer = httpx.MockTransport(lambda _: httpx.Response(status, content=body))
    async with httpx.AsyncClient(transport=answer) as http:
        await send_decision(http, PEER, {}, DECISION)


@pytest.mark.parametrize("body", [b"<html>Sign in</html>", b'{"object": "run"}'])
async def test_what_is_no_approval_does_not(body: bytes) -> None:
    with pytest.raises(DecisionRefused, match="knows nothing of approvals") as refused:
        await decide(200, body)
    assert refused.value.code == "agent_unavailable"


@pytest.mark.parametrize(
    ("status", "error", "code"),
    [
        (409, {"message": "decided already", "code": "already_decided"}, "already_decided"),
        (403, {"message": "you may not", "code": "forbidden"}, "decision_refused"),
        (429, {"message": "later", "code": "rate_limited"}, "agent_unavailable"),
        (503, {"message": "away", "code": "store_away"}, "agent_unavailable"),
    ],
)
async def test_a_refusal_says_whether_to_try_again(status: int, error: Any, code: str) -> None:
    with pytest.raises(DecisionRefused) as refused:
        await decide(status, orjson.dumps({"error": {**error, "param": None}}))
    assert refused.value.code == code
