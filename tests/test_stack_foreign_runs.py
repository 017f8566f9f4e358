"""What waits, trees and queues belong to who began the run: to others it is not there, anywhere."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from support.stack import agent, beyond_loopback, box, call, until

from diptych.access.grants import Grant, Grantee, Right
from diptych.manifest.settings import AccessConfig
from diptych.policy.rules import Policy, Rule

KEYS = {"ada": "key-of-ada-Yx3", "bob": "key-of-bob-Kp9", "lead": "key-of-lead-Vn2"}
ASK = Policy((Rule("tool", "pay", "ask"),))
UNKNOWN = "run-0000000000-00000000000000000000000000000000"


async def pay() -> str:
    """Pay."""
    return "paid"


def as_(who: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {KEYS[who]}"}


def access() -> AccessConfig:
    askers = tuple(Grantee("key", name) for name in ("ada", "bob"))
    return AccessConfig(
        keys={name: (lambda key=key: key) for name, key in KEYS.items()},  # type: ignore[misc]
        grants=(
            Grant(askers, frozenset({Right.ASK})),
            Grant((Grantee("key", "lead"),), frozenset({Right.ASK, Right.APPROVE})),
        ),
    )


@asynccontextmanager
async def waiting() -> AsyncIterator[tuple[httpx.AsyncClient, str]]:
    """Serve an agent, and have ada begin a run whose call waits."""
    config = agent(call("pay"), "{}", "x", tools=(box(pay),), policy=ASK, access=access())
    async with beyond_loopback(config) as http:

        async def is_ready() -> bool:
            return (await http.get("/ready")).status_code == 200

        await until(is_ready, 30)
        begun = await http.post("/v1/runs", json={"input": "hi"}, headers=as_("ada"))
        run_id = begun.json()["id"]

        async def waits() -> bool:
            found = await http.get(f"/v1/runs/{run_id}", headers=as_("ada"))
            return bool(found.json()["status"] == "input-required")

        await until(waits, 30)
        yield http, run_id


CONTROLS = [
    ("GET", "", None),
    ("GET", "/tree", None),
    ("GET", "/events", None),
    ("DELETE", "/queue", None),
    ("POST", "/steer", {"message": "x"}),
    ("POST", "/follow-up", {"message": "x"}),
    ("POST", "/cancel", {}),
    ("POST", "/resume", {}),
    ("POST", "/approvals/call_1_1", {"decision": "approve"}),
    ("POST", "/approvals/call_9_9", {"decision": "approve"}),
]


@pytest.mark.parametrize(("method", "path", "body"), CONTROLS)
async def test_a_foreign_run_is_answered_as_one_that_never_was(
    method: str, path: str, body: Any
) -> None:
    content = {} if body is None else {"json": body}
    async with waiting() as (http, run_id):
        foreign = await http.request(
            method, f"/v1/runs/{run_id}{path}", headers=as_("bob"), **content
        )
        unknown = await http.request(
            method, f"/v1/runs/{UNKNOWN}{path}", headers=as_("bob"), **content
        )
        assert foreign.status_code == unknown.status_code == 404
        assert foreign.json() == unknown.json()
        run = (await http.get(f"/v1/runs/{run_id}", headers=as_("ada"))).json()
        assert run["status"] == "input-required"  # nothing has happened to it


async def test_a_list_shows_nobody_what_waits_for_somebody_else() -> None:
    async with waiting() as (http, run_id):
        shown = {}
        for who in KEYS:
            reply = await http.get("/v1/approvals", headers=as_(who))
            shown[who] = [each["run_id"] for each in reply.json()["data"]]
            assert who == "ada" or run_id not in json.dumps(
                (await http.get("/v1/runs", headers=as_(who))).json()
            )
        assert shown == {"ada": [run_id], "bob": [], "lead": [run_id]}


async def test_who_may_decide_decides_and_sees_nothing_else() -> None:
    async with waiting() as (http, run_id):
        path = f"/v1/runs/{run_id}"
        own = await http.post(
            f"{path}/approvals/call_1_1", json={"decision": "approve"}, headers=as_("ada")
        )
        assert own.status_code == 403
        for more in ("", "/tree", "/events"):
            assert (await http.get(f"{path}{more}", headers=as_("lead"))).status_code == 404
        decided = await http.post(
            f"{path}/approvals/call_1_1", json={"decision": "approve"}, headers=as_("lead")
        )
        assert (decided.status_code, decided.json()["decided_by"]) == (200, "key:lead")
