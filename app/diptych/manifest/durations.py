"""Durations such as `5s`, `1m30s` or `500ms`: strings in the manifest, seconds here."""

import re
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from diptych.manifest.rules import CEL_RULES, JsonSchema, cel_matches, rule_error

_PATTERN = re.compile(r"(?:([0-9]{1,9})h)?(?:([0-9]{1,9})m)?(?:([0-9]{1,9})s)?(?:([0-9]{1,9})ms)?")
_UNIT_SECONDS = (3600.0, 60.0, 1.0, 0.001)
FORMAT_MESSAGE = 'must be a duration such as "30s", "1m30s" or "500ms"'


@dataclass(frozen=True, slots=True)
class DurationRange:
    """Marks a field that holds a duration, and gives its bounds, written as durations.

    Both bounds are allowed, except "0s", which never is.
    """

    least: str
    most: str

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._validate)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchema:
        is_duration = f"size(self) > 0 && {cel_matches(_PATTERN.pattern.replace('?:', ''))}"
        above = ">=" if _seconds(self.least) else ">"
        is_in_range = (
            "!self.matches('^([0-9]+(h|m|s|ms))+$')"
            f" || duration(self) {above} duration('{self.least}')"
            f" && duration(self) <= duration('{self.most}')"
        )
        rules = [
            {"rule": is_duration, "message": FORMAT_MESSAGE},
            {"rule": is_in_range, "message": self._range_message},
        ]
        return {"type": "string", "type_name": "duration", "maxLength": 32, CEL_RULES: rules}

    @property
    def _range_message(self) -> str:
        above = "at least" if _seconds(self.least) else "more than"
        return f'must be {above} "{self.least}" and at most "{self.most}"'

    def _validate(self, value: object) -> float:
        seconds = _seconds(value)
        if seconds is None:
            raise rule_error(FORMAT_MESSAGE)
        least, most = _seconds(self.least) or 0.0, _seconds(self.most) or 0.0
        if seconds == 0 or not least <= seconds <= most:
            raise rule_error(self._range_message)
        return seconds


def _seconds(text: object) -> float | None:
    """Read a duration; None if it is none."""
    match = _PATTERN.fullmatch(text) if isinstance(text, str) and text else None
    if match is None:
        return None
    return sum(int(n) * unit for n, unit in zip(match.groups("0"), _UNIT_SECONDS, strict=True))


Duration: TypeAlias = Annotated[float, DurationRange("0s", "24h")]
Retention: TypeAlias = Annotated[float, DurationRange("1m", "720h")]
