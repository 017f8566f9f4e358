"""What a person sees of a run while it happens: its steps, and its answer as it arrives.

Not here: where it is written (`screen`), where it comes from (`asking`).
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from diptych.cli.output.screen import Part, Screen
from diptych.cli.output.wording import call_text, duration, one_line
from diptych.http.views import event_view, notice_view
from diptych.loop.codec import TERMINAL, Record
from diptych.ports import Item, Notice

TICK_SECONDS = 0.1
RECONNECTING = "reconnecting"
"""The type of a notice of our own: a stream broke, and is being picked up again."""
ASKING_AGAIN = "asking_again"
"""Another one: it broke before the agent had said that it took the question."""
_REASONING = "reasoning"  # the key of the model's own murmuring; calls have their ids
_WHEEL = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


_BREAKS = {
    ASKING_AGAIN: "{message}; asking again",
    RECONNECTING: "{message}; picking the run up again",
    "handed_over": "the agent's pod is leaving, and hands the run over",
    "reset": "the agent's store has lost the end of this run; it goes on from event {last_seq}",
}
"""What interrupts the telling of a run, and what is said of it."""


class View(Protocol):
    """Is told every item of a run in order; `tick` comes ten times a second while it lasts."""

    def show(self, item: Item) -> None: ...

    def tick(self) -> None: ...


class JsonLines:
    """One JSON object a line, as `/v1/runs/{id}/events` shows them; fulfils `View`.

    What is no event of the run, but of our connection, goes to stderr.
    """

    def show(self, item: Item) -> None:
        if isinstance(item, Notice) and item.type in {ASKING_AGAIN, RECONNECTING}:
            sys.stderr.write(f"! {_BREAKS[item.type].format_map(item.fields)}\n")
            return
        shown = notice_view(item) if isinstance(item, Notice) else event_view(item)
        sys.stdout.write(orjson.dumps(shown).decode() + "\n")
        sys.stdout.flush()

    def tick(self) -> None:
        """Nothing moves here."""


@dataclass(slots=True)
class _Flight:
    """A call that was sent and has not come back."""

    text: str
    target: str
    label: str
    is_tool: bool
    sent: float
    unheard: str = ""  # what it has murmured while another was being listened to
    was_heard: bool = False


class Timeline:
    """A run in lines that stay, for people; fulfils `View`.

    Of agents that are asked side by side, one is listened to at a time: two streams in one place
    cannot be read.
    """

    def __init__(
        self, screen: Screen, *, question: bool = False, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._screen = screen
        self._shows_question = question
        self._now = now
        self._flights: dict[str, _Flight] = {}
        self._speaker: str | None = None
        self._step = 0  # of the call line that was printed last, 0 if another line followed
        self._max_steps = 0
        self._begun: float | None = None
        self._model_calls = 0
        self._answer_begun = False
        self._over = False
        self._waiting_for = "the model"
        self._waiting_since = now()

    def show(self, item: Item) -> None:
        if isinstance(item, Notice):
            self._notice(item)
        else:
            self._record(item)
        self._wait()

    def tick(self) -> None:
        if self._over or self._answer_begun or self._speaker:
            return
        passed = self._now() - self._waiting_since
        wheel = _WHEEL[int(passed / TICK_SECONDS) % len(_WHEEL)]
        self._screen.transient(f"{wheel} waiting for {self._waiting_for} · {passed:.1f} s")

    def _notice(self, notice: Notice) -> None:
        said: Any = notice.fields
        match notice.type:
            case "progress":
                self._max_steps = said["max_steps"]
            case "tool_progress":
                self._line(("  … " + one_line(f"{said['target']}: {said['message']}", 200), "dim"))
            case "delegation_progress":
                self._murmur(said["call_id"], said["content"])
            case "reasoning":
                self._murmur(_REASONING, said["content"])
            case "format_warning":
                self._line(("! ", "yellow"), said["message"])
            case kind if kind in _BREAKS:
                self._line(("! ", "yellow"), _BREAKS[kind].format_map(said))

    def _record(self, record: Record) -> None:  # noqa: C901 - a table
        self._begun = record.timestamp if self._begun is None else self._begun
        match record.event_type:
            case "user_message" if self._shows_question or record.seq > 1:
                self._line(("❯ ", "bold"), (str(record.content), "bold"))
            case "model_reply":
                self._model_calls += 1
                self._hush(_REASONING)
            case "action_error":
                self._misread(record)
            case "tool_call" | "delegation_request":
                self._call(record)
            case "tool_result" | "delegation_response" | "tool_error" | "delegation_error":
                self._result(record)
            case "text":
                self._answer(record)
            case "answer_reset":
                self._start_over()
            case "owner_changed":
                self._line(("! ", "yellow"), "another process has taken the run over")
            case "agent_response":
                if not self._answer_begun:
                    self._answer(record)
                self._screen.end_answer()
                self._answer_begun = False  # there may be another turn
            case kind if kind in TERMINAL:
                self._end(record)

    def _call(self, record: Record) -> None:
        about: Any = record.metadata
        content: Any = record.content
        is_tool = record.event_type == "tool_call"
        text, target = call_text(record), content["tool" if is_tool else "agent"]
        of = f"/{self._max_steps}" if self._max_steps else ""
        head = f"● step {about['step']}{of}  "
        if about["step"] == self._step:
            head = " " * len(head)
        label = [(f"{about['id']} = ", "dim")] if "id" in about else []
        room = self._screen.width - len(head) - sum(len(part[0]) for part in label) - 3
        mark = "" if is_tool else "→ "
        self._line((head, "cyan"), *label, mark + one_line(text, room))
        name = str(about.get("id", ""))
        self._flights[about["call_id"]] = _Flight(text, target, name, is_tool, record.timestamp)
        self._step = about["step"]

    def _result(self, record: Record) -> None:
        about: Any = record.metadata
        follows_its_call = bool(self._step) and len(self._flights) == 1
        flight = self._flights.pop(about["call_id"], None)
        failed = record.event_type.endswith("error")
        heard = flight is not None and flight.was_heard
        self._hush(about["call_id"])
        parts: list[Part] = [("  ✗ ", "red") if failed else ("  ✓ ", "green")]
        if not follows_its_call or heard:
            name = self._name(flight, about)
            parts.append((name if heard and not failed else name + "  ", "dim"))
        took = f"  {duration(record.timestamp - flight.sent)}" if flight else ""
        if failed or not heard:
            room = self._screen.width - sum(len(part[0]) for part in parts) - len(took) - 1
            text = one_line(record.content, min(max(room, 40), 200))
            parts.append((text, "red" if failed else ""))
        self._line(*parts, (took, "dim"))
        self._listen_to_the_next()

    def _name(self, flight: _Flight | None, about: Any) -> str:  # noqa: ANN401 - a record's
        """Name a call shortly, but so that it is not taken for another."""
        if flight is None:
            return str(about.get("tool") or about.get("agent"))
        return flight.label or one_line(flight.text if flight.is_tool else flight.target, 40)

    def _misread(self, record: Record) -> None:
        kind = record.metadata["error_type"]
        self._line(("! ", "yellow"), f"a reply could not be used ({kind}): ", str(record.content))

    def _answer(self, record: Record) -> None:
        if not self._answer_begun:
            self._speaker = None
            self._screen.end_murmur()
            self._screen.gap()
        self._answer_begun = True
        self._screen.answer(str(record.content))

    def _start_over(self) -> None:
        self._screen.end_answer()
        self._line(("! ", "yellow"), "the answer starts over; what was said of it does not hold")
        self._answer_begun = False

    def _end(self, record: Record) -> None:
        self._over = True
        took = duration(record.timestamp - (self._begun or record.timestamp))
        match record.event_type:
            case "completed":
                self._screen.gap()
                self._line((f"✓ done in {took} · {self._cost(record)}", "dim"))
            case "max_steps":
                self._answer(record)
                self._screen.end_answer()
                self._line(("✗ ", "red"), f"stopped at the limit of steps, after {took}")
            case "failed":
                code = record.metadata["code"]
                self._line(("✗ failed", "red"), f" ({code}) after {took}: {record.content}")
            case "aborted":
                self._line(("✗ aborted", "red"), f" after {took}: {record.content}")

    def _cost(self, record: Record) -> str:
        usage: Any = record.metadata.get("usage") or {}
        calls = f"{self._model_calls} model calls · " if self._model_calls else ""
        return (
            f"{calls}tokens: {usage.get('prompt_tokens', 0)} in, "
            f"{usage.get('completion_tokens', 0)} out"
        )

    def _line(self, *parts: Part) -> None:
        self._step = 0
        self._screen.line(*parts)

    def _murmur(self, key: str, text: str) -> None:
        if self._speaker is None:
            self._speaker = key
        if flight := self._flights.get(key):
            if self._speaker != key:
                flight.unheard += text
                return
            if not flight.was_heard and len(self._flights) > 1:
                text = f"{flight.target}: {text}"
            flight.was_heard = True
        if self._speaker == key:
            self._screen.murmur(text)

    def _hush(self, key: str) -> None:
        if self._speaker == key:
            self._speaker = None
            self._screen.end_murmur()

    def _listen_to_the_next(self) -> None:
        for key, flight in self._flights.items():
            if flight.unheard and self._speaker is None:
                text, flight.unheard = flight.unheard, ""
                self._murmur(key, text)

    def _wait(self) -> None:
        """Note what the run waits for now."""
        names = dict.fromkeys(flight.target for flight in self._flights.values())
        waiting_for = ", ".join(names) or "the model"
        if waiting_for != self._waiting_for:
            self._waiting_for, self._waiting_since = waiting_for, self._now()
