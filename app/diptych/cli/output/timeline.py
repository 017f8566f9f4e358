"""Shows a run to people: its calls and results as lines, its answer as it arrives."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from diptych.cli.output.screen import REFRESH_SECONDS, Mark, Part, Screen
from diptych.cli.output.tree import TreeLines
from diptych.cli.output.wording import (
    asked_text,
    budget_text,
    call_text,
    duration,
    event_text,
    one_line,
)
from diptych.core.codec import TERMINAL, Record
from diptych.ports import Item, Notice

RECONNECTING = "reconnecting"
RETRYING_START = "asking_again"
CONNECTION_NOTICES: Mapping[str, str] = {
    RETRYING_START: "{message}; asking again",
    RECONNECTING: "{message}; picking the run up again",
}
"""Notices that the command line adds to a run's, about its connection to the agent."""
_WARNINGS: Mapping[str, str] = {
    **CONNECTION_NOTICES,
    "format_warning": "{message}",
    "model_wait": "{message}",
    "handed_over": "the agent's pod is leaving, and hands the run over",
    "reset": "the agent's store has lost the end of this run; it goes on from event {last_seq}",
}
_CUT_ANSWERS = {
    "length": "the answer is not whole: the model's length limit cut it off",
    "content_filter": "the answer is not whole: a content filter cut it off",
}
_REASONING = "reasoning"  # the key of the model's reasoning among quotes; a call's is its id
LONG_WAIT_SECONDS = 3.0
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_RESULT_CHARS = 40, 200  # at least, at most


class _Stage(Enum):
    WORKING = auto()
    ANSWERING = auto()
    ENDED = auto()


@dataclass(slots=True)
class _PendingCall:
    """A call that has no result yet; `name` is what no other pending call is called."""

    target: str
    name: str
    sent_at: float
    was_quoted: bool = False
    was_missed: bool = False  # it streamed while another call was quoted


class Timeline:
    """A run as lines that stay; fulfils `Renderer`.

    Of agents that stream at the same time, the first is quoted: mixed, neither can be read.
    """

    def __init__(
        self,
        screen: Screen,
        *,
        question: bool = False,
        model: str = "the model",
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take where to write, whether the question is shown, the model, and a clock in seconds."""
        self._screen = screen
        self._shows_question = question
        self._now = now
        self._stage = _Stage.WORKING
        self._pending: dict[str, _PendingCall] = {}
        self._tree = TreeLines()
        self._quoted: str | None = None  # whose text is being quoted: a call's id, or _REASONING
        self._waiting_calls: set[str] = set()  # a person may be asked right now
        self._last_step = 0  # of the call in the last line, 0 if that is no call
        self._max_steps = 0
        self._budget = ""  # what the run has used of it, shown at its end
        self._started_at: float | None = None
        self._model_calls = 0
        self._is_native = False
        self._model = model
        self._waiting_for = self._awaited()
        self._waiting_since = now()
        self._has_shown_wait = False  # without a terminal a long wait is printed once

    def render(self, item: Item) -> None:
        if isinstance(item, Notice):
            self._render_notice(item)
        else:
            self._render_record(item)
        waiting_for = self._awaited()
        if waiting_for != self._waiting_for:
            self._waiting_for, self._waiting_since = waiting_for, self._now()
            self._has_shown_wait = False

    def _awaited(self) -> str:
        """Say what the run waits for: the results of calls, or the model's next reply."""
        if targets := ", ".join(dict.fromkeys(call.target for call in self._pending.values())):
            return f"the call of {targets}"
        number = "the first reply" if not self._model_calls else f"reply {self._model_calls + 1}"
        return f"{number} of {self._model}"

    def refresh(self) -> None:
        if self._stage is not _Stage.WORKING or self._quoted or self._waiting_calls:
            return
        passed = self._now() - self._waiting_since
        if not self._screen.is_live and passed >= LONG_WAIT_SECONDS and not self._has_shown_wait:
            self._has_shown_wait = True
            self._print_line((f"… waiting for {self._waiting_for}", "dim"))
        spinner = _SPINNER[int(passed / REFRESH_SECONDS) % len(_SPINNER)]
        self._screen.show_status(f"{spinner} waiting for {self._waiting_for} · {passed:.1f} s")

    def _render_notice(self, notice: Notice) -> None:
        fields: Any = notice.fields
        match notice.type:
            case "progress":
                self._max_steps = fields["max_steps"]
            case "tool_progress":
                text = one_line(f"{fields['target']}: {fields['message']}", 200)
                self._print_line(("  … " + text, "dim"))
            case "delegation_progress" if "event" in fields:
                for parts in self._tree.lines(fields, self._screen.width):
                    self._print_line(*parts)
            case "delegation_progress":
                self._quote(fields["call_id"], fields["content"])
            case "reasoning":
                thought = str(fields["content"])
                self._quote(_REASONING, thought if self._quoted else thought.lstrip("\n"))
            case "budget":
                self._budget = budget_text(fields["used"], fields["limits"])
            case "budget_warning":
                self._warn(f"{fields['budget']}: {fields['used']} of {fields['limit']} used")
            case kind if kind in _WARNINGS:
                self._warn(_WARNINGS[kind].format_map(fields))

    def _render_record(self, record: Record) -> None:  # noqa: C901, PLR0912, PLR0915 - a table
        self._started_at = record.timestamp if self._started_at is None else self._started_at
        text = event_text(record.event_type, record.content, record.metadata)
        match record.event_type:
            case "user_message" if "resumes" in record.metadata and not record.content:
                self._print_line((text, "dim"))
            case "user_message" if self._shows_question or record.seq > 1:
                self._print_line(("❯ ", "bold"), (str(record.content), "bold"))
            case "model_reply":
                self._model_calls += 1
                self._end_quote(_REASONING)
            case "action_error":
                kind = record.metadata["error_type"]
                self._warn(f"a reply could not be used ({kind}): {record.content}")
            case "approval_requested" | "input_requested":
                self._render_wait(record, text)
            case "approval_decided" | "input_received":
                self._waiting_calls.discard(str(record.metadata["call_id"]))
                self._print_line(("  ? ", "magenta"), text)
            case "tool_call" | "delegation_request":
                self._render_call(record)
            case "tool_result" | "delegation_response" | "tool_error" | "delegation_error":
                self._render_result(record)
            case "text":
                self._write_answer(record)
            case "compacted":
                self._print_line(("a summary stands for the earlier conversation now", "dim"))
            case "answer_reset":
                self._screen.end_answer()
                self._warn("the answer starts over; what was said of it does not hold")
                self._stage = _Stage.WORKING
            case "offered":
                self._is_native = record.metadata.get("action_format") == "native"
            case "action_format":
                self._is_native = False
                why = one_line(str(record.metadata.get("reason")), 400)
                self._warn(f"calls are asked for as JSON from here on: {why}")
            case "owner_changed":
                self._warn("another process has taken the run over")
            case "agent_response":
                if self._stage is not _Stage.ANSWERING:
                    self._write_answer(record)
                self._screen.end_answer()
                self._stage = _Stage.WORKING  # a message to the run starts another answer
            case kind if kind in TERMINAL:
                self._render_end(record)
                self._stage = _Stage.ENDED

    def _render_wait(self, record: Record, asked: str) -> None:
        metadata, content = record.metadata, record.content
        call_id = str(metadata["call_id"])
        self._waiting_calls.add(call_id)
        what = "an answer" if record.event_type == "input_requested" else "a decision"
        if isinstance(content, Mapping):
            asked = asked_text(content)
        why = f"  {metadata['reason']}" if metadata.get("reason") else ""
        self._print_line(
            (f"? waits for {what}  ", "magenta"), asked, (f"{why}  ({call_id})", "dim")
        )

    def _render_call(self, record: Record) -> None:
        metadata: Any = record.metadata
        content: Any = record.content
        is_tool = record.event_type == "tool_call"
        text, target = call_text(content), content["tool" if is_tool else "agent"]
        of_max = f"/{self._max_steps}" if self._max_steps else ""
        head = f"● step {metadata['step']}{of_max}  "
        if metadata["step"] == self._last_step:
            head = " " * len(head)
        label = f"{metadata['id']} = " if "id" in metadata else ""
        room = self._screen.width - len(head) - len(label) - 3
        arrow = "" if is_tool else "→ "
        self._print_line((head, "cyan"), (label, "dim"), arrow + one_line(text, room))
        name = str(metadata.get("id") or one_line(text if is_tool else target, 40))
        self._pending[metadata["call_id"]] = _PendingCall(target, name, record.timestamp)
        self._last_step = metadata["step"]

    def _render_result(self, record: Record) -> None:
        metadata: Any = record.metadata
        follows_its_call = bool(self._last_step) and len(self._pending) == 1
        call = self._pending.pop(metadata["call_id"], None)
        self._waiting_calls.discard(metadata["call_id"])
        self._end_quote(metadata["call_id"])
        failed = record.event_type.endswith("error")
        was_quoted = call is not None and call.was_quoted
        name = call.name if call else str(metadata.get("tool") or metadata.get("agent"))
        parts: list[Part] = [("  ✗ ", "red") if failed else ("  ✓ ", "green")]
        shows_text = failed or not was_quoted
        if not follows_its_call or was_quoted:
            parts.append((name + "  " if shows_text else name, "dim"))
        took = f"  {duration(record.timestamp - call.sent_at)}" if call else ""
        if shows_text:
            least, most = _RESULT_CHARS
            room = self._screen.width - sum(len(part[0]) for part in parts) - len(took) - 1
            text = one_line(record.content, min(max(room, least), most))
            parts.append((text, "red" if failed else ""))
        self._print_line(*parts, (took, "dim"))

    def _write_answer(self, record: Record) -> None:
        if self._stage is not _Stage.ANSWERING:
            self._quoted = None
            self._screen.end_quote()
            self._screen.print_gap()
        self._stage = _Stage.ANSWERING
        self._screen.write_answer(str(record.content))

    def _render_end(self, record: Record) -> None:
        took = duration(record.timestamp - (self._started_at or record.timestamp))
        match record.event_type:
            case "completed":
                self._screen.print_gap()
                if cut := _CUT_ANSWERS.get(str(record.metadata.get("finish_reason"))):
                    self._warn(cut)
                self._print_line((f"✓ done in {took} · {self._cost(record)}", "dim"))
            case "max_steps":
                self._write_answer(record)
                self._screen.end_answer()
                self._print_line(("✗ ", "red"), f"stopped at the limit of steps, after {took}")
            case "failed":
                reason = f" ({record.metadata['code']}) after {took}: {record.content}"
                self._print_line(("✗ failed", "red"), reason)
            case "aborted":
                self._print_line(("✗ aborted", "red"), f" after {took}: {record.content}")
        if self._budget:
            self._print_line((self._budget, "dim"))

    def _cost(self, record: Record) -> str:
        usage: Any = record.metadata.get("usage") or {}
        calls = f"{self._model_calls} model calls · " if self._model_calls else ""
        calls += "native tool calls · " if self._is_native else ""
        return (
            f"{calls}tokens: {usage.get('prompt_tokens', 0)} in, "
            f"{usage.get('completion_tokens', 0)} out"
        )

    def _warn(self, text: str) -> None:
        self._print_line(Mark.NOTE.value, text)

    def _print_line(self, *parts: Part) -> None:
        self._last_step = 0
        self._screen.print_line(*parts)

    def _quote(self, key: str, text: str) -> None:
        call = self._pending.get(key)
        if self._quoted is None and not (call and call.was_missed):
            self._quoted = key
            if call and len(self._pending) > 1:
                text = f"{call.target}: {text}"
        if call:
            call.was_quoted = self._quoted == key
            call.was_missed = not call.was_quoted
        if self._quoted == key:
            self._screen.write_quote(text)

    def _end_quote(self, key: str) -> None:
        if self._quoted == key:
            self._quoted = None
            self._screen.end_quote()
