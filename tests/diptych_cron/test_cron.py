"""Cron lines by Kubernetes' rules: robfig/cron's own cases, and days when the clock is changed."""

import re
from datetime import UTC, datetime
from itertools import pairwise

import pytest

from diptych_cron import CRON_PATTERN, Cron, InvalidCron

BERLIN, NEW_YORK, LORD_HOWE = "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"


def at(text: str) -> float:
    return datetime.fromisoformat(text).astimezone(UTC).timestamp()


def times(line: str, zone: str, start: str, end: str) -> list[str]:
    """List all times from a moment up to and including another, in UTC."""
    cron, found, moment = Cron.parse(line, zone), [], at(start) - 1
    while (moment := cron.next_after(moment)) is not None and moment <= at(end):
        found.append(datetime.fromtimestamp(moment, UTC).strftime("%d %H:%M"))
    return found


@pytest.mark.parametrize(
    ("line", "start", "expected"),
    [
        ("0 7 * * 1-5", "2026-11-27T07:00+00:00", "2026-11-30T07:00+00:00"),
        ("0 7 * * mon-Fri", "2026-11-27T07:00+00:00", "2026-11-30T07:00+00:00"),
        ("*/15 * * * *", "2012-07-09T14:45+00:00", "2012-07-09T15:00+00:00"),
        ("20-35/15 * * * *", "2012-07-09T14:45+00:00", "2012-07-09T15:20+00:00"),
        ("0 0 29 FEB *", "2025-03-01T00:00+00:00", "2028-02-29T00:00+00:00"),
        ("5/20 3 * * *", "2026-01-01T03:05+00:00", "2026-01-01T03:25+00:00"),
        ("7-7/20 3 * * *", "2026-01-01T03:07+00:00", "2026-01-02T03:07+00:00"),
        ("0 0 * * 4/2", "2026-11-28T00:00+00:00", "2026-12-03T00:00+00:00"),  # 4, 6; not 7 = 0
        # With a star in either, both must match; else either does.
        ("0 0 1,15 * *", "2026-11-02T00:00+00:00", "2026-11-15T00:00+00:00"),
        ("0 0 1,15 * SUN", "2026-11-02T00:00+00:00", "2026-11-08T00:00+00:00"),
        ("0 0 */10 * SUN", "2012-07-01T00:01+00:00", "2012-07-08T00:00+00:00"),
        ("0 0 */1 * SUN", "2012-07-01T00:01+00:00", "2012-07-08T00:00+00:00"),
        ("0 0 */1 * MON,*", "2012-07-01T00:01+00:00", "2012-07-02T00:00+00:00"),
    ],
)
def test_the_next_time(line: str, start: str, expected: str):
    assert re.fullmatch(CRON_PATTERN, line)
    assert Cron.parse(line, "Etc/UTC").next_after(at(start)) == at(expected)


@pytest.mark.parametrize(
    ("line", "zone", "start", "end", "expected"),
    [
        # Set forward: what is skipped does not run.
        ("30 2 * * *", BERLIN, "2026-03-28T00:00Z", "2026-03-30T23:00Z", ["28 01:30", "30 00:30"]),
        (
            "0 * * * *",
            BERLIN,
            "2026-03-29T00:00Z",
            "2026-03-29T02:00Z",
            ["29 00:00", "29 01:00", "29 02:00"],
        ),
        ("30 2 * * *", NEW_YORK, "2026-03-08T00:00Z", "2026-03-09T23:00Z", ["09 06:30"]),
        # Set back: what is repeated runs twice.
        ("30 2 * * *", BERLIN, "2026-10-25T00:00Z", "2026-10-25T23:00Z", ["25 00:30", "25 01:30"]),
        (
            "*/30 2 * * *",
            BERLIN,
            "2026-10-25T00:00Z",
            "2026-10-25T23:00Z",
            ["25 00:00", "25 00:30", "25 01:00", "25 01:30"],
        ),
        (
            "30 1 * * *",
            NEW_YORK,
            "2026-11-01T00:00Z",
            "2026-11-01T23:00Z",
            ["01 05:30", "01 06:30"],
        ),
        (
            "45 1 * * *",
            LORD_HOWE,
            "2026-04-04T12:00Z",
            "2026-04-05T12:00Z",
            ["04 14:45", "04 15:15"],
        ),
        ("0 3 * * *", BERLIN, "2026-10-25T00:00Z", "2026-10-25T23:00Z", ["25 02:00"]),
    ],
)
def test_a_day_when_the_clock_is_changed(line, zone, start, end, expected):
    assert times(line, zone, start, end) == expected


@pytest.mark.parametrize("zone", [BERLIN, NEW_YORK, LORD_HOWE])
@pytest.mark.parametrize("line", ["17 1-3 * * *", "*/20 * * * *", "0 2 * * 0"])
def test_going_back_finds_the_same_times(line: str, zone: str):
    cron = Cron.parse(line, zone)
    for start in (
        "2026-03-07T12:00Z",
        "2026-04-04T12:00Z",
        "2026-10-24T12:00Z",
        "2026-10-31T12:00Z",
    ):
        moment, found = at(start), []
        for _ in range(40):
            moment = cron.next_after(moment) or 0
            found.append(moment)
        assert found == sorted(set(found))
        for before, after in pairwise(found):
            assert cron.last_until(after) == after
            assert cron.last_until(after - 1) == before


@pytest.mark.parametrize(
    "line",
    [
        "",
        "* * * *",
        "0 0 * * * *",
        "60 * * * *",
        "0 24 * * *",
        "0 0 0 * *",
        "0 0 * 13 *",
        "0 0 * * 7",
        "0 0 * * L",
        "0 0 L * *",
        "*/0 * * * *",
        "@daily",
        "TZ=UTC 0 0 * * *",
        "0  0 * * *",
        "a b c d e",
    ],
)
def test_what_is_no_cron_line(line: str):
    assert not re.fullmatch(CRON_PATTERN, line)


@pytest.mark.parametrize(
    ("line", "zone", "message"),
    [
        ("0 7 * * 5-1", "Etc/UTC", "day of week: 5-1 is reversed"),
        ("0 0 31 2,4 *", "Etc/UTC", "never run"),
        ("0 0 * * *", "Mars/Olympus", "no time zone Mars/Olympus"),
        ("0 0 * * *", "../etc/passwd", "no time zone"),
        ("0 0 * * *", "Europe", "no time zone"),
    ],
)
def test_what_is_wrong_in_a_cron_line_is_named(line: str, zone: str, message: str):
    with pytest.raises(InvalidCron, match=message):
        Cron.parse(line, zone)
