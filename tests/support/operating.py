"""The whole operator, kopf included, in a test: started, waited for, asked how an Agent is."""

import asyncio
import contextlib
import time
from collections.abc import Callable

from diptych_operator import main
from diptych_operator.controller import config_maps as configs
from diptych_operator.controller import leader_election as leader
from diptych_operator.controller import readiness_poll as visits
from diptych_operator.controller.metrics import Metrics
from diptych_operator.kubernetes.connection import Connection
from diptych_operator.main import Session
from diptych_operator.process.settings import settings_from
from diptych_operator.resources.kinds import AGENT
from diptych_operator.watch import resync as listing

NAME = ("team", "coordinator")
SETTINGS = settings_from(
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
    monkeypatch.setattr(listing, "PERIOD", 0.3)
    monkeypatch.setattr(listing, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(main, "PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(visits, "PERIOD", 0.3)
    monkeypatch.setattr(visits, "TICK", 0.05)
    monkeypatch.setattr(configs, "PERIOD", 0.3)
    monkeypatch.setattr(configs, "TICK", 0.05)
    monkeypatch.setattr(leader, "RENEW_SECONDS", 0.2)


@contextlib.asynccontextmanager
async def running(api, settings=SETTINGS):
    """An operator for this API, stopped at the end as kubectl would."""
    session = Session(settings, Connection(api.url, True, lambda: None), Metrics())
    task = asyncio.create_task(session.run())
    try:
        yield task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def session(api):
    """A session that is not started yet."""
    return Session(SETTINGS, Connection(api.url, True, lambda: None), Metrics())


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
