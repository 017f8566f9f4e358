"""Cron lines by the rules of Kubernetes' CronJobs, shared by pods and the operator.

A line matches each minute whose local time matches its fields. So when the clock is set forward, a
skipped time does not run; when it is set back, a repeated time runs twice. With a day of month and
a day of week, either may match. Kubernetes' parser is robfig/cron; its macros, such as `@daily`,
are not supported.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

_MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
_WEEKDAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]
_FIELDS: tuple[tuple[str, int, int, list[str], str], ...] = (
    ("minute", 0, 59, [], "[0-5]?[0-9]"),
    ("hour", 0, 23, [], "[01]?[0-9]|2[0-3]"),
    ("day of month", 1, 31, [], "0?[1-9]|[12][0-9]|3[01]"),
    ("month", 1, 12, _MONTHS, f"0?[1-9]|1[0-2]|{'|'.join(_MONTHS)}"),
    ("day of week", 0, 6, _WEEKDAYS, f"0?[0-6]|{'|'.join(_WEEKDAYS)}"),
)
"""Name, least and greatest number, names of numbers, regex of a number."""
_MAX_SHIFT = timedelta(hours=4)  # of a clock, more than any time zone's


def _field_pattern(number: str) -> str:
    entry = rf"(\*|({number})(-({number}))?)(/[1-9][0-9]?)?"
    return f"{entry}(,{entry})*"


CRON_PATTERN = f"(?i:{' '.join(_field_pattern(number) for *_, number in _FIELDS)})"
"""Matches cron lines, in Python and RE2; only `Cron` finds reversed ranges and impossible dates."""


class InvalidCron(ValueError):
    """A cron line or a time zone is invalid; the message says why."""


@dataclass(frozen=True, slots=True)
class Cron:
    """A parsed cron line in a time zone. Times are Unix times in seconds."""

    _line: str
    _zone: ZoneInfo

    @classmethod
    def parse(cls, line: str, time_zone: str) -> "Cron":
        """Parse a line that matches `CRON_PATTERN`. Raises `InvalidCron`."""
        fields = zip(line.split(" "), _FIELDS, strict=True)
        canonical = " ".join(
            _numbers(text, name, range(low, high + 1), names)
            for text, (name, low, high, names, _) in fields
        )
        try:
            CronSim(canonical, datetime(2000, 1, 1))  # noqa: DTZ001 - local times, on purpose
        except CronSimError:
            raise InvalidCron("its months have no such day, so it would never run") from None
        return cls(canonical, read_time_zone(time_zone))

    def next_after(self, moment: float) -> float | None:
        """Return the first time after a moment; None if there is none."""
        return self._nearest(moment, is_back=False)

    def last_until(self, moment: float) -> float | None:
        """Return the last time up to and including a moment; None if there is none."""
        return self._nearest(moment, is_back=True)

    def _nearest(self, moment: float, *, is_back: bool) -> float | None:
        """Find the nearest time in one direction, among local times in that order.

        Around a change of the clock the order of local times is not that of times, so all within
        `_MAX_SHIFT` are compared.
        """
        sign = -1 if is_back else 1
        local = datetime.fromtimestamp(moment, self._zone).replace(tzinfo=None)
        best: tuple[float, datetime] | None = None
        for found in CronSim(self._line, local - sign * _MAX_SHIFT, reverse=is_back):
            if best and sign * (found - best[1]) > _MAX_SHIFT:
                break
            for time in self._times(found):
                is_beyond = time <= moment if is_back else time > moment
                if is_beyond and (best is None or sign * (time - best[0]) < 0):
                    best = time, found
        return best[0] if best else None

    def _times(self, local: datetime) -> Iterator[float]:
        """Yield the times at which clocks show a local time: two, one, or none."""
        shown = (local.replace(tzinfo=self._zone, fold=fold) for fold in (0, 1))
        for time in dict.fromkeys(one.astimezone(UTC) for one in shown):
            if time.astimezone(self._zone).replace(tzinfo=None) == local:
                yield time.timestamp()


def wrong_field(line: str) -> str | None:
    """Name the first wrong one of a line's five fields; None if it has not five."""
    texts = line.split(" ")
    if len(texts) != len(_FIELDS):
        return None
    for text, (name, low, high, names, number) in zip(texts, _FIELDS, strict=True):
        if not re.fullmatch(f"(?i:{_field_pattern(number)})", text):
            allowed = f"{low} to {high}" + (f" or {names[0]} to {names[-1]}" if names else "")
            return f"{name}: must be {allowed}, *, or such as 1-5, 1,5 and */5, and is {text}"
    return None


def read_time_zone(name: str) -> ZoneInfo:
    """Return a zone of the IANA database. Raises `InvalidCron`."""
    try:
        return ZoneInfo(name)
    except (KeyError, OSError, ValueError):  # a folder of zones, or another path
        raise InvalidCron(f"there is no time zone {name}; write one like Europe/Berlin") from None


def _numbers(text: str, field: str, allowed: range, names: list[str]) -> str:
    """Write a field as a list of numbers, or as `*`, which combines days in another way."""

    def number(name: str) -> int:
        return names.index(name.upper()) + allowed[0] if name.upper() in names else int(name)

    found: set[int] = set()
    for entry in text.split(","):
        span, _, step = entry.partition("/")
        first, _, last = span.partition("-")
        if span == "*":
            if int(step or 1) == 1:
                return "*"
            low, high = allowed[0], allowed[-1]
        else:
            low = number(first)
            high = number(last) if last else allowed[-1] if step else low
        if high < low:
            raise InvalidCron(f"{field}: {span} is reversed; write the lower one first")
        found |= set(range(low, high + 1, int(step or 1)))
    return ",".join(map(str, sorted(found)))
