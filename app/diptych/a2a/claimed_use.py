"""What an agent claims that a task has used, held against what it was given and what it has shown.

A claim is the agent's word, and its caller's budgets are counted by it. So no task counts for more
than it could use of what it was given, nor for less than the events of its own run show. What
differs is put on the log, and on the logger `diptych.audit`.
"""

import json
import logging

from diptych.a2a.reports import TaskReport, read_tokens
from diptych.core.budget import encode_budget
from diptych.core.excerpts import READ_RESULT
from diptych.core.messages import JSON, NO_USE, Used
from diptych.core.spending import as_used, capped
from diptych.ports import ChildEvent, DelegationRequest

_MODEL_CALLS = frozenset({"model_reply", "compacted"})
_logger = logging.getLogger(__name__)
_audit = logging.getLogger("diptych.audit")


class ClaimedUse:
    """The claims of one delegation's task; `request` says what the task was given."""

    def __init__(self, request: DelegationRequest) -> None:
        self.is_broken_off = False  # for us, by an error or what is not valid; it may still work
        self._request = request
        self._shown = Used()
        self._is_whole = not request.is_taken_over
        self._has_shown = False
        self._report = TaskReport()
        self._is_silent = False  # it has ended, has shown what it used, and claims nothing

    def show(self, event: ChildEvent) -> None:
        """Count what an event of the task says that it has used; it must have come once."""
        self._has_shown = True
        if event.skipped or event.type == "delegation_request":
            self._is_whole = False  # there is more to it than events of its own
        if event.path or not event.seq or "error" in event.metadata:
            return
        if event.type in _MODEL_CALLS and (usage := read_tokens(event.metadata.get("usage"))):
            tokens = usage.prompt_tokens + usage.completion_tokens
            self._shown += Used(tokens, model_calls=1)
        elif event.type == "tool_call" and not _is_reader(event.content):
            self._shown += Used(tool_calls=1)

    def miss(self) -> None:
        """Keep that an event was dropped: what is shown is less than what happened."""
        self._is_whole = False

    def counted(self, report: TaskReport, *, has_ended: bool = False) -> Used | None:
        """Give what the task counts for by now; None if it says nothing that could be counted.

        One that has ended and claims nothing counts for what it has shown. Before that its silence
        says nothing: if it is lost, it counts for all that it was given, and so does one that is
        broken off.
        """
        self._report = report
        if not self._request.budget:
            return report.used
        shown = self._shown
        claim = self._claim(report)
        self._is_silent = claim is None and has_ended and shown != NO_USE
        if self._is_silent:
            claim = NO_USE
        if claim is None:
            return None
        least = claim._replace(
            tokens=max(claim.tokens, shown.tokens),
            model_calls=max(claim.model_calls, shown.model_calls),
            tool_calls=max(claim.tool_calls, shown.tool_calls),
        )
        return capped(least, self._request.budget)

    def close(self) -> None:
        """Put a claim on the log that is not what was given or shown; the task has ended."""
        report, granted = self._report, self._request.budget
        claim = report.used
        if report.is_unreadable and granted:
            self._note("names amounts that are none")
        if self.is_broken_off and granted:
            self._note("broke off its task with an error or what is not valid, and may still work")
        if self._is_silent:
            self._note("claims nothing, and its events show use")
        if claim is None:
            return
        if capped(claim, granted) != claim:
            self._note("claims more than it could use of what it was given")
        elif claim.tokens < self._shown.tokens:
            self._note("claims less than its events show")
        elif self._has_shown and self._is_whole and claim.tokens > self._shown.tokens:
            self._note("claims more than its events show")

    def _claim(self, report: TaskReport) -> Used | None:
        if report.is_unreadable or self.is_broken_off:
            return as_used(self._request.budget)
        if report.used is None and report.usage is not None:
            return Used(report.usage.prompt_tokens + report.usage.completion_tokens)
        return report.used

    def _note(self, why: str) -> None:
        request, claim = self._request, self._report.used
        line = {
            "subject": f"agent {request.agent}",
            "outcome": "bounded" if request.budget else "noted",
            "run": request.run_id,
            "call": request.call_id,
            "claimed": encode_budget(claim) if claim else None,
            "shown": encode_budget(self._shown),
            "given": encode_budget(request.budget),
            "why": why,
        }
        _logger.warning("run %s: the agent %s %s", request.run_id, request.agent, why)
        _audit.warning("%s", json.dumps(line, ensure_ascii=True))


def _is_reader(content: JSON) -> bool:
    """Whether a call only reads on in a long result, which counts as no call."""
    return isinstance(content, dict) and content.get("tool") == READ_RESULT.long_name
