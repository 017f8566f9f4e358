"""Another agent's task, assembled from its updates, as the result of a delegation."""

import json
from collections.abc import Iterable

from a2a.types import Artifact, Message, Part, Role, StreamResponse, Task, TaskState, TaskStatus

from diptych.a2a.extension import TaskReport, json_of, metadata_under_uri, read_finish_reason
from diptych.core.errors import DelegationError
from diptych.core.messages import JSON, CallOutput, ChildRun, FinishReason
from diptych.core.text import one_line, well_formed
from diptych.net.redaction import SECRETS

MAX_ANSWER_CHARS = 4 * 2**20  # kept of one artifact or message; the runner cuts the result further
MAX_ARTIFACTS = 100  # of a task; later ones are not kept
MAX_REASON_CHARS = 2_000
MAX_PARTIAL_CHARS = 64 * 1024  # recorded of what a task had said that did not complete
MAX_QUOTED_PARTIAL_CHARS = 2_000  # of these, that the model reads
MAX_TASK_ID_CHARS = 256

TERMINAL_STATES = frozenset(
    {
        TaskState.TASK_STATE_COMPLETED,
        TaskState.TASK_STATE_FAILED,
        TaskState.TASK_STATE_CANCELED,
        TaskState.TASK_STATE_REJECTED,
    }
)
INTERRUPTED_STATES = frozenset(
    {TaskState.TASK_STATE_INPUT_REQUIRED, TaskState.TASK_STATE_AUTH_REQUIRED}
)
_PROBLEMS = {
    TaskState.TASK_STATE_REJECTED: "rejected the task",
    TaskState.TASK_STATE_CANCELED: "canceled the task",
    TaskState.TASK_STATE_INPUT_REQUIRED: "asked for input",
    TaskState.TASK_STATE_AUTH_REQUIRED: "asked for authorization",
}


class Content:
    """The parts of one artifact or message, each text on a line of its own.

    Pieces of a streamed text, which are added later, are joined as they are. In `text` the values
    of data parts stand below the texts, as JSON; `value` is the last one.
    """

    def __init__(self, parts: Iterable[Part] = ()) -> None:
        self.value: JSON = None
        self.finish_reason: FinishReason = "stop"
        self.size = 0  # of all texts and values, in characters
        self._texts: list[str] = []
        self._values: list[JSON] = []
        self.add(parts)

    @property
    def text(self) -> str:
        said = "".join(self._texts)
        if not self._values or (said and _is_written_out(said, self._values)):
            return said
        return "\n".join(filter(None, (said, *map(_as_text, self._values))))

    def add(self, parts: Iterable[Part], *, as_pieces: bool = False) -> str:
        """Add parts, up to the limit; return the added text, without the values.

        With `as_pieces` the parts may be those of a streamed text, each as it came.
        """
        new: list[str] = []
        for part in parts:
            if part.HasField("data"):
                self._add_value(json_of(part.data))
            elif (text := _part_text(part)) and self.size <= MAX_ANSWER_CHARS:
                before = "".join(self._texts[-1:] + new[-1:])[-1:]
                is_file = not part.HasField("text")
                if (is_file and before.strip()) or (new and not as_pieces and before != "\n"):
                    text = f"\n{text}"
                self.size += len(text)
                new.append(text)
        self._texts += new
        return "".join(new)

    def _add_value(self, value: JSON) -> None:
        self.value = value
        size = len(_as_text(value))
        if value is not None and (not self._values or self.size + size <= MAX_ANSWER_CHARS):
            self.size += size
            self._values.append(value)


def _as_text(value: JSON) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def _is_written_out(text: str, values: list[JSON]) -> bool:
    """Whether a text is JSON of the type of the one value beside it, as our own agents write it.

    The two are not compared further: a value's numbers are doubles, those of a text are exact.
    """
    if len(values) > 1:
        return False
    try:
        return isinstance(json.loads(text), type(values[0]))
    except (ValueError, RecursionError):
        return False


def _part_text(part: Part) -> str:
    match part.WhichOneof("content"):
        case "text":
            return str(part.text)
        case "url":
            return f"[{part.filename or 'a file'}: {part.url}]"
        case "raw":
            return f"[{part.filename or 'a file'} of {len(part.raw)} bytes, not shown]"
        case _:
            return ""


def last_words(history: Iterable[Message]) -> str:
    """Return what the agent said last in a task's history, if nothing was said to it since.

    Agents that do not stream may leave their answer there alone (Microsoft's Agent Framework).
    """
    words = ""
    for message in history:
        is_agent = message.role == Role.ROLE_AGENT
        words = (Content(message.parts).text or words) if is_agent else ""
    return words


class TaskProgress:
    """The task of one delegation; `url` is the base URL of its agent.

    `report` is the newest that the agent gave of it. While it `waits_for_approval`, of a call at or
    below the agent, it may ask for input and goes on later. A task that `has_pieces` may hold an
    artifact as the pieces in which it was streamed.
    """

    def __init__(self, url: str = "") -> None:
        self.task_id = ""
        self.has_pieces = False
        self.report = TaskReport()
        self.waits_for_approval = False
        self._url = url
        self._state = TaskState.TASK_STATE_UNSPECIFIED
        self._newest_words = ""  # of the newest status
        self._status_words = ""  # of the newest status that had any
        self._last_words = ""  # of the agent, in the task's history
        self._message: Content | None = None
        self._artifacts: dict[str, Content] = {}

    @property
    def is_completed(self) -> bool:
        return self._message is not None or self._state == TaskState.TASK_STATE_COMPLETED

    @property
    def has_ended(self) -> bool:
        return self._message is not None or self._state in TERMINAL_STATES

    @property
    def is_settled(self) -> bool:
        """Whether there is nothing more to wait for: it has ended, or wants something from us."""
        is_asking = self._state in INTERRUPTED_STATES
        is_approval = self._state == TaskState.TASK_STATE_INPUT_REQUIRED and self.waits_for_approval
        return self.has_ended or (is_asking and not is_approval)

    def apply(self, event: StreamResponse) -> str:
        """Apply an event; return the new text of the answer."""
        match event.WhichOneof("payload"):
            case "task":
                return self.apply_task(event.task)
            case "message":
                self._message = Content(event.message.parts)
                return self._message.text
            case "status_update":
                self.task_id = self.task_id or event.status_update.task_id
                self._apply_status(event.status_update.status)
            case "artifact_update":
                update = event.artifact_update
                self.task_id = self.task_id or update.task_id
                return self._apply_artifact(update.artifact, appends=update.append)
        return ""

    def apply_task(self, task: Task) -> str:
        """Apply a whole task, which replaces all that came before; return the new text."""
        self.task_id = task.id
        self._apply_status(task.status)
        before = self._text()
        self._artifacts.clear()
        for artifact in task.artifacts:
            self._apply_artifact(artifact, appends=False, as_pieces=self.has_pieces)
        self._last_words = last_words(task.history) or self._last_words
        return self._text().removeprefix(before)

    def call_output(self, agent: str) -> CallOutput:
        """Return the result of a settled task; `agent` is its agent's name.

        Raises `DelegationError` if the task is not completed.
        """
        if self._message is not None:
            message = self._message
            return CallOutput(message.text, message.value, message.finish_reason, self.child())
        if self._state != TaskState.TASK_STATE_COMPLETED:
            problem = _PROBLEMS.get(self._state, "failed")
            raise DelegationError("failed", f"agent {agent} {problem}: {self._reason()}")
        contents = self._artifacts.values()
        return CallOutput(
            self._text() or self._newest_words or self._last_words or self._status_words,
            next((c.value for c in reversed(contents) if c.value is not None), None),
            next((c.finish_reason for c in contents if c.finish_reason != "stop"), "stop"),
            self.child(),
        )

    def child(self) -> ChildRun:
        """Return the state of the task so far."""
        partial = ""
        if not self.is_completed:
            partial = SECRETS.redact(well_formed(self._text()))[:MAX_PARTIAL_CHARS]
        return ChildRun(
            self._url,
            one_line(self.task_id, MAX_TASK_ID_CHARS),
            "completed" if self._message is not None else _state_name(self._state),
            "" if self.is_completed else self.report.code,
            self.report.usage,
            partial,
            self.report.used,
        )

    def _reason(self) -> str:
        """Return why a task did not complete; a question may stand in an artifact alone."""
        text = self._text()
        is_asking = self._state in INTERRUPTED_STATES
        if is_asking and text and not self._newest_words:
            return text[:MAX_REASON_CHARS]
        unsaid = "it did not say what" if is_asking else "it gave no reason"
        reason = self._status_words[:MAX_REASON_CHARS] or unsaid
        if not text.strip():
            return reason
        more = "…" if len(text) > MAX_QUOTED_PARTIAL_CHARS else ""
        return f"{reason}\nUntil then it had said: {text[:MAX_QUOTED_PARTIAL_CHARS]}{more}"

    def _apply_status(self, status: TaskStatus) -> None:
        self._state = status.state
        self._newest_words = Content(status.message.parts).text
        if status.HasField("message"):
            self._status_words = self._newest_words

    def _apply_artifact(self, artifact: Artifact, *, appends: bool, as_pieces: bool = False) -> str:
        self.has_pieces |= appends
        known, before = self._artifacts.get(artifact.artifact_id), ""
        if not appends or known is None:
            size = sum(content.size for content in self._artifacts.values())
            if len(self._artifacts) >= MAX_ARTIFACTS or size > MAX_ANSWER_CHARS:
                return ""
            self._artifacts[artifact.artifact_id] = Content()
            before = known.text if known else ""
        content = self._artifacts[artifact.artifact_id]
        if (about := metadata_under_uri(artifact.metadata)) is not None:
            content.finish_reason = read_finish_reason(about)
        return content.add(artifact.parts, as_pieces=as_pieces).removeprefix(before)

    def _text(self) -> str:
        return "\n\n".join(text for a in self._artifacts.values() if (text := a.text))


def _state_name(state: int) -> str:
    """Return A2A's word for a state: "" for none, "unknown" for a number that it does not have."""
    if state == TaskState.TASK_STATE_UNSPECIFIED:
        return ""
    try:
        return TaskState.Name(state).removeprefix("TASK_STATE_").lower().replace("_", "-")
    except ValueError:
        return "unknown"
