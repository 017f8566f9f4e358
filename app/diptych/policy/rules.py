"""A policy: the rules that decide on calls, first match first, and its audit lines.

It fails closed: a rule that cannot be evaluated denies, whatever it was to do.

Not here: expressions (`diptych_cel`), two policies at once (`layers`), the manifest's form
(`config.manifest.policy`).
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from diptych.loop.catalog import Catalog, Tool
from diptych.loop.messages import JSON, Call, Delegation, JSONObject, ToolCall
from diptych_cel.expressions import About, CallFacts, EvaluationFailed, Expression

Owner = Literal["agent", "platform"]
Outcome = Literal["allow", "deny", "ask"]
EXPIRES = 600.0  # seconds for which an approval waits, unless a rule says otherwise
_MAX_WHY = 300  # characters: a line of the log is JSON only as long as it is whole
_AUDITED: Mapping[Outcome, str] = {"allow": "allowed", "deny": "denied", "ask": "asked"}
_logger = logging.getLogger(__name__)
_audit = logging.getLogger("diptych.audit")


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule, for the calls that `glob` and `when` match.

    `about` is what it is about: tools, by their names or long names, or agents. An approval
    `expires` after so many seconds. With `is_dry_run` it decides nothing, and is audited.
    """

    about: About
    glob: str
    do: Outcome
    when: Expression | None = None
    reason: str = ""
    expires: float = EXPIRES
    is_dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a policy says of a call, and why; `expires` is in seconds, for `ask`."""

    outcome: Outcome
    reason: str = ""
    expires: float = EXPIRES


@dataclass(frozen=True, slots=True)
class Asker:
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
_MOST_NAMES = 10_000  # of tools and agents, whose rules are remembered


class Policy:
    """Rules in their order: an agent's, or those that its platform has for all (`owner`)."""

    def __init__(self, rules: tuple[Rule, ...] = (), owner: Owner = "agent") -> None:
        self._rules = rules
        self._owner = owner
        self._by_name: dict[tuple[str, ...], list[tuple[int, Rule]]] = {}

    def decide(
        self, call: Call, catalog: Catalog, asker: Asker, *, is_approved: bool = False
    ) -> Verdict:
        """Decide on a call whose arguments are filled; a call that no rule matches is allowed.

        What a person has approved is not asked about again, and can still be denied. Each verdict
        is a line of the audit, if there are rules.
        """
        if not self._rules:
            return ALLOWED
        try:
            return self._decide(call, catalog, asker, is_approved=is_approved)
        except Exception:
            _logger.exception("the policy broke on a call of run %s", asker.run_id)
            return Verdict("deny", f"the {self._owner}'s policy broke")

    def _decide(self, call: Call, catalog: Catalog, asker: Asker, *, is_approved: bool) -> Verdict:
        facts = CallFacts(_variables(call, catalog, asker))
        for number, rule in self._about(facts.variables):
            verdict = self._verdict(rule, number, facts)
            if verdict is None:
                continue
            if verdict.outcome == "ask" and is_approved:
                verdict = Verdict("allow", "approved")
            self._note(call, asker, verdict, number, is_dry_run=rule.is_dry_run)
            if not rule.is_dry_run:
                return verdict
        self._note(call, asker, ALLOWED, None)
        return ALLOWED

    def _about(self, variables: Mapping[str, JSONObject]) -> list[tuple[int, Rule]]:
        """Give the rules for what a call is called, with their places; found once for a name."""
        kind: About = "tool" if "tool" in variables else "agent"
        about = variables[kind]
        names = tuple(str(about[key]) for key in ("name", "longName") if key in about)
        found = self._by_name.get((kind, *names))
        if found is None:
            rules = enumerate(self._rules)
            found = [(number, rule) for number, rule in rules if _is_named(rule, kind, names)]
            if len(self._by_name) < _MOST_NAMES:
                self._by_name[kind, *names] = found
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
        asker: Asker,
        verdict: Verdict,
        number: int | None,
        *,
        is_dry_run: bool = False,
    ) -> None:
        outcome = _AUDITED[verdict.outcome]
        line = {
            "subject": asker.subject or "anybody",
            "outcome": f"would be {outcome}" if is_dry_run else outcome,
            "run": asker.run_id,
            "call": call.id,
            "what": f"tool {call.name}" if isinstance(call, ToolCall) else f"agent {call.agent}",
            "policy": self._owner,
            "rule": None if number is None else number + 1,
            "why": verdict.reason[:_MAX_WHY],
        }
        level = logging.INFO if verdict.outcome == "allow" else logging.WARNING
        _audit.log(level, "%s", json.dumps(line, ensure_ascii=True))


def _is_named(rule: Rule, kind: About, names: tuple[str, ...]) -> bool:
    return rule.about == kind and any(fnmatchcase(name, rule.glob) for name in names)


def _variables(call: Call, catalog: Catalog, asker: Asker) -> dict[str, JSONObject]:
    if isinstance(call, Delegation):
        arguments: JSONObject = {"task": call.task}
        return {"args": arguments, "agent": {"name": call.agent}, "caller": asker.variables}
    tool = catalog.tool(call.name)
    about = _tool_variables(tool) if tool else {"name": call.name}
    return {"args": call.arguments, "tool": about, "caller": asker.variables}


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
