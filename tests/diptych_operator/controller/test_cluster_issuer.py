"""The cluster's issuer and its keys: read again and again, and kept while the API is away."""

import asyncio

import pytest
from support.kubernetes import ErrorResponse
from support.operator_process import until
from support.reconciler_harness import served

from diptych_operator.controller import cluster_issuer
from diptych_operator.desired.access import TokenIssuer

KNOWN = TokenIssuer("https://cluster.example", ({"kty": "EC", "kid": "1"},))


@pytest.fixture
async def harness():
    async with served() as found:
        yield found


async def test_rotated_keys_are_seen_at_the_next_look(harness, monkeypatch):
    monkeypatch.setattr(cluster_issuer, "PERIOD", 0.01)
    task = asyncio.create_task(harness.issuer.run())
    await until(lambda: harness.issuer.current == KNOWN)
    harness.api.keys = {"keys": [{"kty": "EC", "kid": "2"}]}
    await until(lambda: harness.issuer.current.keys[0]["kid"] == "2")
    task.cancel()


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(ErrorResponse(503, "away"), id="an API that is away"),
        pytest.param(ErrorResponse(403, "no"), id="a right that is missing"),
        pytest.param({"keys": []}, id="no keys"),
        pytest.param({"keys": "none"}, id="keys of another form"),
        pytest.param([], id="no object"),
    ],
)
async def test_what_cannot_be_read_leaves_what_is_known(harness, answer):
    await harness.issuer.refresh()

    def before(request, content):
        if isinstance(answer, ErrorResponse):
            raise answer

    harness.api.before = before
    harness.api.keys = answer
    await harness.issuer.refresh()
    assert harness.issuer.current == KNOWN
    assert harness.issuer.problem


async def test_a_missing_right_names_the_role_that_gives_it(harness):
    def before(request, content):
        raise ErrorResponse(403, "forbidden")

    harness.api.before = before
    await harness.issuer.refresh()
    assert "system:service-account-issuer-discovery" in harness.issuer.problem
