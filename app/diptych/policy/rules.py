"""A policy: the rules that decide on calls, first match first, and its audit lines.

It fails closed: a rule that cannot be evaluated denies, whatever it was to do; a dry run says so.
"""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from json.encoder import encode_basestring_ascii as _quoted
from typing import Any, Literal

from diptych.core.catalog import Catalog, Tool
from diptych.core.messages import JSON, Call, Delegation, JSONObject, ToolCall
from diptych.policy.rule_groups import EXPIRES, Rule, RuleGroup, grouped
from diptych_cel.expressions import About, CallFacts, EvaluationFailed

Owner = Literal["agent", "platform"]
Outcome = Literal["allow", "deny", "ask", "repeated"]
_MAX_WHY = 300  # characters: a line of the log is JSON only as long as it is whole
MOST_REPEATS = 2
"""Of an effect, in consecutive steps: the call that would be the next one is not made."""
_AUDITED: Mapping[Outcome, str] = {
    "allow": "allowed",
    "deny": "denied",
    "ask": "asked",
    "repeated": "repeated",
}
_LINE = (
    '{"subject": %s, "outcome": "%s", "run": %s, "call": %s, "what": %s, "policy": "%s", '
    '"rule": %s, "why": %s}'
)
"""Of the audit; `json.dumps` takes five times as long to write it."""
_logger = logging.getLogger(__name__)
_audit = logging.getLogger("diptych.audit")
_RECORDS: Mapping[int, Mapping[str, Any]] = {
    level: vars(
        logging.makeLogRecord(
            {"name": _audit.name, "levelno": level, "levelname": name, "may_wait": may_wait}
        )
    )
    for level, name, may_wait in ((logging.INFO, "INFO", True), (logging.WARNING, "WARNING", False))
}
"""What records of the audit have in common, by their level (`serve.logs` for `may_wait`)."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a policy says of a call, and why; `expires` is in seconds, for `ask`.

    A call that is `repeated` is not made; its result says so.
    """

    outcome: Outcome
    reason: str = ""
    expires: float = EXPIRES


@dataclass(frozen=True, slots=True)
class RunCaller:
    """Who began a run, for `caller` in expressions; the run's id is for the audit.

    `on_behalf_of` is for whom that caller says to work; nobody has proved it.
    """

    run_id: str
    subject: str = ""
    on_behalf_of: str = ""

    @property
    def variables(self) -> dict[str, JSON]:
        """Who it is; empty strings if nobody knows."""
        kind, _, name = self.subject.partition(":")
        about: dict[str, JSON] = {"subject": self.subject, "kind": kind, "name": name}
        return about | {"onBehalfOf": self.on_behalf_of}


ALLOWED = Verdict("allow")
_NOT_AGAIN = "it is not made again. Use what came back, change the arguments, or go on without it"
REPEATED = Verdict(
    "repeated", f"this call was made with the same arguments in two steps in a row; {_NOT_AGAIN}"
)
_MOST_NAMES = 10_000  # of tools and agents, whose rules are remembered


class Policy:
    """Rules in their order: an agent's, or those that its platform has for all (`owner`)."""

    def __init__(self, rules: tuple[Rule, ...] = (), owner: Owner = "agent") -> None:
        self._rules = rules
        self._owner = owner
        self._by_name: dict[tuple[str, ...], Sequence[RuleGroup]] = {}
        self._by_numbers: dict[tuple[int, ...], Sequence[RuleGroup]] = {}

    def verdict(
        self,
        call: Call,
        catalog: Catalog,
        caller: RunCaller,
        *,
        is_approved: bool = False,
        repeats: int = 0,
    ) -> Verdict:
        """Say what becomes of a call with filled arguments; one that no rule matches is allowed.

        What a person has approved is not asked about again, and can still be denied. `repeats` is
        in how many steps just before this one the same effect was asked for. Each verdict is a line
        of the audit, if there are rules or the call is repeated.
        """
        if not self._rules and repeats < MOST_REPEATS:
            return ALLOWED
        try:
            return self._evaluate(call, catalog, caller, is_approved, repeats)
        except Exception:
            _logger.exception("the policy broke on a call of run %s", caller.run_id)
            verdict = Verdict("deny", f"the {self._owner}'s policy broke")
            self._note(call, caller, verdict, None)
            return verdict

    def _evaluate(
        self, call: Call, catalog: Catalog, caller: RunCaller, is_approved: bool, repeats: int
    ) -> Verdict:
        if isinstance(call, ToolCall):
            tool = catalog.tool(call.name)
            facts = CallFacts("tool", call.arguments, partial(_about_tool, call, tool, caller))
        else:
            tool = None
            facts = CallFacts("agent", {"task": call.task}, partial(_about_agent, call, caller))
        for number, rule in self._undecided(facts, call, tool):
            verdict = self._verdict(rule, number, facts)
            if verdict is None:
                continue
            if verdict.outcome == "ask" and is_approved:
                verdict = Verdict("allow", "approved")
            elif verdict.outcome == "allow" and repeats and not is_approved:
                verdict = _repeated(rule, repeats)
            self._note(call, caller, verdict, number, is_dry_run=rule.is_dry_run)
            if not rule.is_dry_run:
                return verdict
        verdict = REPEATED if repeats >= MOST_REPEATS and not is_approved else ALLOWED
        self._note(call, caller, verdict, None)
        return verdict

    def _undecided(
        self, facts: CallFacts, call: Call, tool: Tool | None
    ) -> Iterator[tuple[int, Rule]]:
        """Give the rules for what a call is called, but those that surely do not hold."""
        for group in self._groups(call, tool):
            if not group.is_surely_false(facts):
                yield from group.rules

    def _groups(self, call: Call, tool: Tool | None) -> Sequence[RuleGroup]:
        """Give the rules for what a call is called, with their places; found once for a name."""
        key: tuple[str, ...]
        if isinstance(call, Delegation):
            key = ("agent", call.agent)
        else:
            key = ("tool", tool.name, tool.server) if tool else ("tool", call.name)
        found = self._by_name.get(key)
        if found is None:
            kind: About = "agent" if isinstance(call, Delegation) else "tool"
            names = (tool.name, tool.long_name) if tool else key[1:]
            rules = enumerate(self._rules)
            named = [(number, rule) for number, rule in rules if _is_named(rule, kind, names)]
            numbers = tuple(number for number, _ in named)
            found = self._by_numbers.get(numbers) or grouped(named)
            if len(self._by_name) < _MOST_NAMES:
                self._by_name[key] = self._by_numbers[numbers] = found
        return found

    def _verdict(self, rule: Rule, number: int, facts: CallFacts) -> Verdict | None:
        """Say what a rule makes of a call of its name; None if its condition does not hold."""
        failed = f"rule {number + 1} of the {self._owner}'s policy failed"
        try:
            if rule.when is not None and not rule.when.holds(facts):
                return None
        except EvaluationFailed as error:
            return Verdict("deny", f"{failed}: {error}")
        except Exception as error:  # noqa: BLE001 - a crash denies, whatever it is
            return Verdict("deny", f"{failed}: {error!r}"[:200])
        default = {"deny": f"the {self._owner}'s policy forbids it"}.get(rule.do, "")
        return Verdict(rule.do, rule.reason or default, rule.expires)

    def _note(
        self,
        call: Call,
        caller: RunCaller,
        verdict: Verdict,
        number: int | None,
        *,
        is_dry_run: bool = False,
    ) -> None:
        level = logging.INFO if verdict.outcome == "allow" else logging.WARNING
        if not _audit.isEnabledFor(level):
            return
        would = "would be " if is_dry_run else ""
        what = f"tool {call.name}" if isinstance(call, ToolCall) else f"agent {call.agent}"
        line = _LINE % (
            _quoted(caller.subject or "anybody"),
            would + _AUDITED[verdict.outcome],
            _quoted(caller.run_id),
            _quoted(call.id),
            _quoted(what),
            self._owner,
            "null" if number is None else number + 1,
            _quoted(verdict.reason[:_MAX_WHY]),
        )
        _audit.handle(_record(level, line))


def _record(level: int, line: str) -> logging.LogRecord:
    """Give a record of the audit as `log` makes it, but without its place in the code, and thread.

    No line says that, and to look it up takes as long as all else.
    """
    record, now = logging.LogRecord.__new__(logging.LogRecord), time.time()
    vars(record).update(_RECORDS[level], msg=line, created=now, msecs=now % 1 * 1000)
    return record


def _is_named(rule: Rule, kind: About, names: tuple[str, ...]) -> bool:
    return rule.about == kind and any(fnmatchcase(name, rule.glob) for name in names)


def _repeated(rule: Rule, repeats: int) -> Verdict:
    """Say what a rule makes of a call that it allows, and that would repeat its effect."""
    match rule.repeat:
        case None:
            return REPEATED if repeats >= MOST_REPEATS else Verdict("allow", rule.reason)
        case "ask":
            reason = rule.reason or "the same call was made in the step before"
            return Verdict("ask", reason, rule.expires)
        case "deny":
            return Verdict("repeated", f"the step before made the same call; {_NOT_AGAIN}")
        case "allow":
            return Verdict("allow", rule.reason)


def _about_agent(call: Delegation, caller: RunCaller) -> dict[str, JSONObject]:
    return {"agent": {"name": call.agent}, "caller": caller.variables}


def _about_tool(call: ToolCall, tool: Tool | None, caller: RunCaller) -> dict[str, JSONObject]:
    about = _tool_variables(tool) if tool else {"name": call.name}
    return {"tool": about, "caller": caller.variables}


def _tool_variables(tool: Tool) -> dict[str, JSON]:
    """Describe a tool, with MCP's annotations: the manifest's word, the server's, or the default.

    The defaults are those of MCP, ToolAnnotations: a tool may destroy and reach the open world.
    """
    hints: dict[str, JSON] = {
        "readOnlyHint": tool.read_only,
        "idempotentHint": tool.idempotent,
        "destructiveHint": not tool.read_only and tool.destructive is not False,
        "openWorldHint": tool.open_world is not False,
    }
    return {
        "name": tool.name,
        "server": tool.server,
        "longName": tool.long_name,
        "annotations": hints,
    }
