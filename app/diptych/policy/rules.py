"""Policies: ordered rules that decide on calls, first match first, and their audit log.

They fail closed: a rule whose condition fails denies the call, or only logs in a dry run.
"""

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Final, Literal

from diptych.core.catalog import Catalog, Tool
from diptych.core.messages import JSON, Call, Delegation, JSONObject, ToolCall
from diptych_cel.expressions import About, CallFacts, EvaluationFailed, Expression

Owner = Literal["agent", "platform"]
Outcome = Literal["allow", "deny", "ask", "repeated"]
Decided = Literal["allow", "deny", "ask"]
EXPIRES = 600.0  # default seconds until an approval expires
MOST_REPEATS = 2
"""Steps in a row that may have the same side effect; the next is blocked."""
_MAX_WHY = 300  # characters; a truncated log line would not be JSON
_AUDITED: Mapping[Outcome, str] = {
    "allow": "allowed",
    "deny": "denied",
    "ask": "asked",
    "repeated": "repeated",
}
_STRICTNESS: Final = ("allow", "ask", "repeated", "deny")
_logger = logging.getLogger(__name__)
_audit = logging.getLogger("diptych.audit")


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule, for the calls that `glob` and `when` match.

    `about` selects tools (by short or long name) or agents. An approval `expires` after that many
    seconds. `is_dry_run` rules only write audit lines. `repeat` decides on allowed calls that
    repeat a side effect of the steps before; by default, the third is blocked.
    """

    about: About
    glob: str
    do: Decided
    when: Expression | None = None
    reason: str = ""
    expires: float = EXPIRES
    is_dry_run: bool = False
    repeat: Decided | None = None

    def names(self, call: Call, tool: Tool | None) -> bool:
        """Whether the rule's glob matches the call's name."""
        if isinstance(call, Delegation):
            return self.about == "agent" and fnmatchcase(call.agent, self.glob)
        names = (tool.name, tool.long_name) if tool else (call.name,)
        return self.about == "tool" and any(fnmatchcase(name, self.glob) for name in names)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A policy's decision on a call, with its reason; `expires` is in seconds, for `ask`.

    A `repeated` call is not made; its result says so.
    """

    outcome: Outcome
    reason: str = ""
    expires: float = EXPIRES


@dataclass(frozen=True, slots=True)
class RunCaller:
    """The caller of a run, for `caller` in expressions; the run id is for the audit log.

    `on_behalf_of` is the caller's unproven claim.
    """

    run_id: str
    subject: str = ""
    on_behalf_of: str = ""

    @property
    def variables(self) -> dict[str, JSON]:
        """The fields of `caller`; empty strings if unknown."""
        kind, _, name = self.subject.partition(":")
        about: dict[str, JSON] = {"subject": self.subject, "kind": kind, "name": name}
        return about | {"onBehalfOf": self.on_behalf_of}


ALLOWED = Verdict("allow")
_NOT_AGAIN = "it is not made again. Use what came back, change the arguments, or go on without it"
REPEATED = Verdict(
    "repeated", f"this call was made with the same arguments in two steps in a row; {_NOT_AGAIN}"
)


class Policy:
    """Ordered rules, of an agent or of its platform (`owner`)."""

    def __init__(self, rules: tuple[Rule, ...] = (), owner: Owner = "agent") -> None:
        self._rules = rules
        self._owner = owner

    def verdict(
        self,
        call: Call,
        catalog: Catalog,
        caller: RunCaller,
        *,
        is_approved: bool = False,
        repeats: int = 0,
    ) -> Verdict:
        """Decide on a call with resolved arguments; without a matching rule, it is allowed.

        `is_approved` calls are not asked about again, but can be denied. `repeats` is the number of
        preceding steps in a row with the same side effect. Verdicts are audited if there are rules,
        or if the call is repeated.
        """
        if not self._rules and repeats < MOST_REPEATS:
            return ALLOWED
        try:
            return self._evaluate(call, catalog, caller, is_approved, repeats)
        except Exception:
            _logger.exception("policy evaluation failed for a call of run %s", caller.run_id)
            verdict = Verdict("deny", f"the {self._owner}'s policy failed")
            self._note(call, caller, verdict, None)
            return verdict

    def _evaluate(
        self, call: Call, catalog: Catalog, caller: RunCaller, is_approved: bool, repeats: int
    ) -> Verdict:
        for number, rule, found in self._matches(call, catalog, caller):
            verdict = found
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

    def _matches(
        self, call: Call, catalog: Catalog, caller: RunCaller
    ) -> Iterator[tuple[int, Rule, Verdict]]:
        if isinstance(call, ToolCall):
            tool = catalog.tool(call.name)
            facts = CallFacts("tool", call.arguments, partial(_about_tool, call, tool, caller))
        else:
            tool = None
            facts = CallFacts("agent", {"task": call.task}, partial(_about_agent, call, caller))
        for number, rule in enumerate(self._rules, 1):
            if rule.names(call, tool) and (verdict := self._verdict(rule, number, facts)):
                yield number, rule, verdict

    def _verdict(self, rule: Rule, number: int, facts: CallFacts) -> Verdict | None:
        """Apply a rule to a call that its glob matches; None if its condition is false."""
        failed = f"rule {number} of the {self._owner}'s policy failed"
        try:
            if rule.when is not None and not rule.when.holds(facts):
                return None
        except EvaluationFailed as error:
            return Verdict("deny", f"{failed}: {error}")
        except Exception as error:  # noqa: BLE001 - any crash denies
            return Verdict("deny", f"{failed}: {error!r}"[:200])
        default = {"deny": f"denied by the {self._owner}'s policy"}.get(rule.do, "")
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
        line = {
            "subject": caller.subject or "anybody",
            "outcome": ("would be " if is_dry_run else "") + _AUDITED[verdict.outcome],
            "run": caller.run_id,
            "call": call.id,
            "what": f"tool {call.name}" if isinstance(call, ToolCall) else f"agent {call.agent}",
            "policy": self._owner,
            "rule": number,
            "why": verdict.reason[:_MAX_WHY],
        }
        level = logging.INFO if verdict.outcome == "allow" else logging.WARNING
        _audit.log(level, json.dumps(line))


class LayeredPolicy(Policy):
    """The platform's rules and the agent's; the stricter verdict wins.

    Neither can weaken the other. Both are audited.
    """

    def __init__(self, platform: Policy, own: Policy) -> None:
        super().__init__()
        self._platform = platform
        self._own = own

    def verdict(self, call: Call, catalog: Catalog, caller: RunCaller, **facts: Any) -> Verdict:  # noqa: ANN401
        """Decide as `Policy.verdict` does; if the platform denies, skip the agent's rules.

        Only the agent's rules consider repeats.
        """
        first = self._platform.verdict(call, catalog, caller, **{**facts, "repeats": 0})
        if first.outcome == "deny":
            return first
        second = self._own.verdict(call, catalog, caller, **facts)
        return max(first, second, key=lambda verdict: _STRICTNESS.index(verdict.outcome))


def _repeated(rule: Rule, repeats: int) -> Verdict:
    """Decide on an allowed call that repeats a side effect."""
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
    """Return a tool's variables, with annotations of the manifest, the server, or MCP's defaults.

    By MCP's defaults, a tool may be destructive and open-world.
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
