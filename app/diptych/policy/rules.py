"""A policy: the rules that decide on calls, first match first, and its audit lines.

It fails closed: a rule that cannot be evaluated denies, whatever it was to do; a dry run says so.
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
EXPIRES = 600.0  # seconds for which an approval waits, unless a rule says otherwise
MOST_REPEATS = 2
"""Of an effect, in consecutive steps: the call that would be the next one is not made."""
_MAX_WHY = 300  # characters: a line of the log is JSON only as long as it is whole
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

    `about` says whether it is about tools, by their names or long names, or agents. An approval
    `expires` after so many seconds. With `is_dry_run` it decides nothing, and is audited. `repeat`
    decides on a call that the rule allows and that would repeat its effect in consecutive steps;
    with None the third is not made.
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
        """Whether it is about calls of this name."""
        if isinstance(call, Delegation):
            return self.about == "agent" and fnmatchcase(call.agent, self.glob)
        names = (tool.name, tool.long_name) if tool else (call.name,)
        return self.about == "tool" and any(fnmatchcase(name, self.glob) for name in names)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A policy's decision on a call, and why; `expires` is in seconds, for `ask`.

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
        """The fields of `caller`; empty strings if nobody knows."""
        kind, _, name = self.subject.partition(":")
        about: dict[str, JSON] = {"subject": self.subject, "kind": kind, "name": name}
        return about | {"onBehalfOf": self.on_behalf_of}


ALLOWED = Verdict("allow")
_NOT_AGAIN = "it is not made again. Use what came back, change the arguments, or go on without it"
REPEATED = Verdict(
    "repeated", f"this call was made with the same arguments in two steps in a row; {_NOT_AGAIN}"
)


class Policy:
    """Rules in their order: an agent's, or those that its platform has for all (`owner`)."""

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
        """Decide on a call with filled arguments; one that no rule matches is allowed.

        What a person has approved is not asked about again, and can still be denied. `repeats` says
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
        """Apply a rule to a call of its name; None if its condition does not hold."""
        failed = f"rule {number} of the {self._owner}'s policy failed"
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
    """The platform's rules and the agent's own: the stricter verdict counts.

    So neither weakens the other. Each verdict of one with rules is a line of the audit.
    """

    def __init__(self, platform: Policy, own: Policy) -> None:
        super().__init__()
        self._platform = platform
        self._own = own

    def verdict(self, call: Call, catalog: Catalog, caller: RunCaller, **facts: Any) -> Verdict:  # noqa: ANN401
        """As `Policy.verdict`; if the platform denies, the agent's rules are not asked.

        Repeated calls are the agent's affair; the platform's rules are silent on them.
        """
        first = self._platform.verdict(call, catalog, caller, **{**facts, "repeats": 0})
        if first.outcome == "deny":
            return first
        second = self._own.verdict(call, catalog, caller, **facts)
        return max(first, second, key=lambda verdict: _STRICTNESS.index(verdict.outcome))


def _repeated(rule: Rule, repeats: int) -> Verdict:
    """Decide on a call that a rule allows, and that would repeat its effect."""
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
