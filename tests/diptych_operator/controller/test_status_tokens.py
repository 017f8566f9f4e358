"""Tokens with which the operator asks pods how they are: one for each owner, renewed in time."""

import pytest
from support.kubernetes import ErrorResponse
from support.reconciler_harness import served

from diptych_operator.controller.readiness_poll import (
    TOKEN_RENEWED_AFTER,
    TOKEN_RETRY_SECONDS,
    StatusTokens,
)

ACCOUNT = ("system", "diptych")
OWN, OTHER = "diptych.dev/team/coordinator", "diptych.dev/team/researcher"


@pytest.fixture
async def harness():
    async with served() as found:
        yield found


async def test_a_token_is_for_one_owner_alone_and_asked_for_once(harness):
    asked = []
    harness.api.before = lambda request, content: asked.append((request.path, content["spec"]))
    tokens = StatusTokens(harness.client, ACCOUNT)
    for _ in range(2):
        found = await tokens.token(OWN)
        assert found == "system/diptych for diptych.dev/team/coordinator"
    assert await tokens.token(OTHER) == "system/diptych for diptych.dev/team/researcher"
    path = "/api/v1/namespaces/system/serviceaccounts/diptych/token"
    assert [one for one, _ in asked] == [path, path]
    assert asked[0][1]["audiences"] == ["diptych.dev/team/coordinator"]
    assert asked[0][1]["expirationSeconds"] > TOKEN_RENEWED_AFTER


async def test_it_is_renewed_and_one_that_cannot_be_renewed_is_used_on(harness):
    now, asked = [0.0], []
    tokens = StatusTokens(harness.client, ACCOUNT, lambda: now[0])
    first = await tokens.token(OWN)
    harness.api.before = lambda request, content: asked.append(request.path)
    now[0] += TOKEN_RENEWED_AFTER
    assert await tokens.token(OWN) == first
    assert len(asked) == 1

    def away(request, content):
        raise ErrorResponse(503, "away")

    harness.api.before = away
    now[0] += TOKEN_RENEWED_AFTER
    assert await tokens.token(OWN) == first


async def test_without_a_right_nothing_is_asked_for_a_while(harness):
    now, asked = [0.0], []

    def refuse(request, content):
        asked.append(request.path)
        raise ErrorResponse(403, "forbidden")

    harness.api.before = refuse
    tokens = StatusTokens(harness.client, ACCOUNT, lambda: now[0])
    assert [await tokens.token(OWN) for _ in range(3)] == [None] * 3
    assert len(asked) == 1
    now[0] += TOKEN_RETRY_SECONDS
    await tokens.token(OWN)
    assert len(asked) == 2


async def test_tokens_of_owners_that_are_gone_are_forgotten(harness):
    tokens = StatusTokens(harness.client, ACCOUNT)
    await tokens.token(OWN)
    tokens.keep({OTHER})
    assert tokens._tokens == {}
