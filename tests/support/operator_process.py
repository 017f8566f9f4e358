"""The whole operator in a test, kopf included: run it, wait, look at an Agent's conditions."""

import asyncio
import contextlib
import time
from collections.abc import Callable

from diptych_operator.controller import (
    cluster_issuer,
    leader_election,
    readiness_poll,
)
from diptych_operator.controller.metrics import Metrics
from diptych_operator.kubernetes.connection import Connection
from diptych_operator.process import term
from diptych_operator.process.settings import read_settings
from diptych_operator.process.term import Operator
from diptych_operator.resources.kinds import AGENT
from diptych_operator.watch import resync

NAME = ("team", "coordinator")
SETTINGS = read_settings(
    [
        "--pod-image",
        "diptych:1",
        "--namespace",
        "system",
        "--health-port",
        "0",
        "--identity",
        "one",
    ],
    {},
)


def quicken(monkeypatch):
    """Shorten the periods that a test would wait for."""
    monkeypatch.setattr(resync, "PERIOD", 0.3)
    monkeypatch.setattr(resync, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(term, "PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(readiness_poll, "PERIOD", 0.3)
    monkeypatch.setattr(readiness_poll, "TICK", 0.05)
    monkeypatch.setattr(cluster_issuer, "PERIOD", 0.3)
    monkeypatch.setattr(cluster_issuer, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(leader_election, "RENEW_PERIOD", 0.2)


@contextlib.asynccontextmanager
async def running(api, settings=SETTINGS):
    """Run an operator for this API; stop it at the end as kubectl would."""
    task = asyncio.create_task(operator(api, settings).run_term())
    try:
        yield task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def operator(api, settings=SETTINGS):
    """Make an operator, which runs no session yet."""
    return Operator(settings, Connection(api.url, True, lambda: None), Metrics())


async def until(claim: Callable[[], object], seconds=15.0):
    end = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < end, "it did not come about in time"
        await asyncio.sleep(0.02)


def condition(api, kind, name=NAME):
    content = api.get(AGENT, name) or {}
    conditions = (content.get("status") or {}).get("conditions", ())
    return next(((c["status"], c["reason"]) for c in conditions if c["type"] == kind), None)


def changes(api):
    """Writes that have changed something, besides the Lease's."""
    return [w for w in api.writes if "leases" not in w[1] and w[2] < 400]
