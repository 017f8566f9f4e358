"""The platform's rules for the calls of all Agents: the chart's value `agents.policy`.

    - match: {tool: "bank__*"}
      when: args.amount > 100
      do: ask
      reason: Payments over 100 need a person.

The form is that of an Agent's `spec.policy`, which the pods check again; only `repeat` is not for
the platform, which has no say in what becomes of repeated calls.
"""

import re
from collections.abc import Mapping
from typing import Any

from diptych_operator.desired.call_policy import policy_mistakes
from diptych_operator.process.settings_file import SettingsError

_FLAG = "--agents: policy"
_MOST = 64
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "do": ("allow", "deny", "ask"),
    "mode": ("enforce", "dryRun"),
}
_TEXTS: Mapping[str, re.Pattern[str]] = {
    "when": re.compile(r".{1,2048}", re.DOTALL),
    "reason": re.compile(r".{0,1024}", re.DOTALL),
    "expires": re.compile(r"(?=.)(\d{1,9}h)?(\d{1,9}m)?(\d{1,9}s)?(\d{1,9}ms)?", re.ASCII),
}
_MILLISECONDS: Mapping[str, int] = {"h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_PART = re.compile(r"([0-9]+)(h|ms|m|s)")
_NAME = re.compile(r"[^\x00-\x20\x7f]([^\x00-\x1f\x7f]{0,254}[^\x00-\x20\x7f])?")


def read_policy(rules: object) -> tuple[Mapping[str, Any], ...]:
    """Check the rules, expressions too. Raises `SettingsError` with the place of a mistake."""
    if not isinstance(rules, list) or len(rules) > _MOST:
        raise SettingsError(f"{_FLAG} must be a list of {_MOST} rules at most")
    for number, rule in enumerate(rules):
        if mistake := _mistake(rule):
            raise SettingsError(f"{_FLAG}[{number}]{mistake}")
    if mistakes := list(policy_mistakes(rules)):
        raise SettingsError("; ".join(f"{_FLAG}{one}" for one in mistakes))
    return tuple(rules)


def _mistake(rule: object) -> str:
    if not isinstance(rule, dict):
        return " must be a mapping"
    if unknown := rule.keys() - {"match", *_CHOICES, *_TEXTS}:
        return f" has unknown fields: {', '.join(sorted(map(str, unknown)))}"
    match rule.get("match"):
        case {"tool": str(name), **rest} | {"agent": str(name), **rest} if not rest:
            if not _NAME.fullmatch(name):
                return ".match must name a tool or an agent in one line"
        case _:
            return ".match needs exactly one of tool, agent"
    return ".do is required" if "do" not in rule else _mistake_in_fields(rule)


def _mistake_in_fields(rule: Mapping[str, Any]) -> str:
    for field, choices in _CHOICES.items():
        if rule.get(field, choices[0]) not in choices:
            return f".{field} must be {', '.join(choices[:-1])} or {choices[-1]}"
    for field, form in _TEXTS.items():
        if field in rule and not (isinstance(rule[field], str) and form.fullmatch(rule[field])):
            return f".{field} does not have its form, as in spec.policy"
    if "expires" in rule and not 0 < _milliseconds(rule["expires"]) <= _milliseconds("24h"):
        return ".expires must be more than 0s and at most 24h"
    return ""


def _milliseconds(duration: str) -> int:
    return sum(int(number) * _MILLISECONDS[unit] for number, unit in _PART.findall(duration))
