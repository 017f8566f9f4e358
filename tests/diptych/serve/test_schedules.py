"""Schedules of a laptop in virtual time: each time one run, missed ones as the schedule says."""

import asyncio
from datetime import UTC, datetime

import pytest

from diptych.core.errors import StoreError
from diptych.manifest.settings import AgentConfig, ScheduleConfig
from diptych.serve.hosted_agent import InProcessBackends
from diptych.serve.local_agents import host_one
from diptych.serve.schedules import Schedules
from diptych.stores.memory.store import MemoryStore
from diptych_cron import Cron

HOUR = 3600.0


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def schedule(name: str, line: str, zone: str = "Etc/UTC", **options) -> ScheduleConfig:
    return ScheduleConfig(name, Cron.parse(line, zone), f"What is new, {name}?", **options)


class Laptop:
    """A clock that only sleep moves, to an end; and what starts runs, noted with their times."""

    def __init__(self, start: str, end: str) -> None:
        self.now, self.end = at(start), at(end)
        self.started: list[tuple[str, str]] = []
        self.keys: list[str] = []
        self.fails = 0
        self.asleep: tuple[float, float] | None = None  # the lid is closed: from, to

    async def start(self, request):
        if self.fails:
            self.fails -= 1
            raise StoreError("away")
        self.keys.append(request.idempotency_key.key)
        time = datetime.fromtimestamp(self.now, UTC).strftime("%d %H:%M")
        self.started.append((request.subject.removeprefix("schedule:"), time))
        return type("Entry", (), {"run_id": "run-1"})

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.asleep and self.now >= self.asleep[0]:
            self.now, self.asleep = max(self.now, self.asleep[1]), None
        if self.now > self.end:
            raise asyncio.CancelledError

    async def run(self, one: ScheduleConfig, last: float | None = None) -> list[str]:
        page = [type("E", (), {"session_id": f"schedule:{one.name}/s", "created": last})]

        class Log:
            async def entries(self, *_, **__):
                return page if last else []

        with pytest.raises(asyncio.CancelledError):
            await Schedules([one], self, Log(), lambda: self.now, self.sleep)._run(one)
        return [time for _, time in self.started]


@pytest.mark.parametrize(
    ("zone", "line", "start", "end", "expected"),
    [
        ("Europe/Berlin", "30 1-3 * * *", "2026-03-28T23:00Z", "2026-03-29T22:00Z", "0:30 1:30"),
        (
            *("Europe/Berlin", "30 1-3 * * *", "2026-10-24T22:00Z", "2026-10-25T23:00Z"),
            "23:30 0:30 1:30 2:30",
        ),
        ("America/New_York", "0 2 * * *", "2026-03-08T05:00Z", "2026-03-09T04:00Z", ""),
        ("America/New_York", "0 1 * * *", "2026-11-01T04:00Z", "2026-11-02T05:00Z", "5:00 6:00"),
        ("Asia/Kolkata", "0 7 * * *", "2026-10-25T00:00Z", "2026-10-26T00:00Z", "1:30"),
    ],
)
async def test_a_day_on_which_the_clock_is_changed(zone, line, start, end, expected):
    laptop = Laptop(start, end)
    started = [time.partition(" ")[2] for time in await laptop.run(schedule("s", line, zone))]
    assert started == [time.rjust(5, "0") for time in expected.split()]
    assert len(set(laptop.keys)) == len(started)


@pytest.mark.parametrize(("runs_missed", "expected"), [(False, []), (True, ["28 12:30"])])
async def test_times_that_passed_while_the_machine_was_asleep(runs_missed, expected):
    laptop = Laptop("2026-11-28T08:15Z", "2026-11-28T12:50Z")
    laptop.asleep = at("2026-11-28T08:30Z"), at("2026-11-28T12:30Z")
    assert await laptop.run(schedule("s", "0 * * * *", runs_missed=runs_missed)) == expected


@pytest.mark.parametrize(
    ("runs_missed", "last", "expected"),
    [
        (True, "2026-11-28T05:00Z", ["28 08:15"]),
        (True, "2026-11-28T08:00Z", []),
        (True, None, []),  # a store without a past
        (False, "2026-11-28T05:00Z", []),
    ],
)
async def test_times_that_passed_while_the_process_was_away(runs_missed, last, expected):
    laptop = Laptop("2026-11-28T08:15Z", "2026-11-28T08:50Z")
    one = schedule("s", "0 * * * *", runs_missed=runs_missed)
    assert await laptop.run(one, at(last) if last else None) == expected


async def test_a_start_that_fails_is_tried_again_while_it_is_not_late():
    laptop = Laptop("2026-11-28T06:59Z", "2026-11-28T07:30Z")
    laptop.fails = 3
    assert await laptop.run(schedule("s", "0 7 * * *")) == ["28 07:00"]
    laptop = Laptop("2026-11-28T06:59Z", "2026-11-28T07:30Z")
    laptop.fails = 100
    assert await laptop.run(schedule("s", "0 7 * * *")) == []


async def test_two_processes_that_share_a_store_start_one_run():
    one = schedule("s", "0 7 * * *", session="morning")
    config = AgentConfig("helper", mock_responses='["{}", "Nothing."]')
    async with host_one(config, InProcessBackends(), MemoryStore("epoch")) as hosted:
        schedules = [Schedules([one], hosted.runs, hosted.stores.log) for _ in range(2)]
        for each in schedules:
            assert await each._start(one, at("2026-11-28T07:00Z"))
        [entry] = await hosted.stores.log.entries(None)
        assert entry.session_id == "schedule:s/morning"
        now = entry.created + HOUR
        assert await schedules[0]._last_begun(one, now) == entry.created
        assert await schedules[0]._last_begun(schedule("other", "0 7 * * *"), now) == now
