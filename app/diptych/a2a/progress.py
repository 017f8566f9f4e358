"""Another agent's task, assembled from its updates, as the result of a delegation."""

import json
from collections.abc import Iterable

from a2a.types import Artifact, Message, Part, Role, StreamResponse, Task, TaskState, TaskStatus

from diptych.a2a.extension import URI, TaskReport, json_of, metadata_under_uri, read_finish_reason
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
    """The parts of an artifact or message, each text on its own line.

    Pieces of a streamed text are concatenated. `text` ends with the data parts as JSON; `value` is
    the last of them.
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
        """Add parts up to the limit; return the added text without data parts.

        With `as_pieces` the parts may be pieces of a streamed text.
        """
        new: list[str] = []
        for part in parts:
            if part.HasField("data"):
                self._add_value(json_of(part.data))
            elif URI in part.metadata:
                continue  # a file out of the value
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
    """Whether the text is the JSON of the data part beside it, as Diptych agents send it.

    Only types are compared: protobuf turns numbers into doubles.
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
    """Return the agent's last message in a task's history, unless a user message follows.

    Microsoft's Agent Framework, unstreamed, puts its answer only there.
    """
    words = ""
    for message in history:
        is_agent = message.role == Role.ROLE_AGENT
        words = (Content(message.parts).text or words) if is_agent else ""
    return words


class TaskProgress:
    """A delegation's task at the agent with the base URL `url`.

    `report` is the newest usage report. While it `is_waiting` for somebody, as its events say,
    `input-required` is not its end. With `has_pieces` an artifact may consist of streamed pieces.
    """

    def __init__(self, url: str = "") -> None:
        self.task_id = ""
        self.has_pieces = False
        self.report = TaskReport()
        self.is_waiting = False
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
        """Whether the task has ended or needs input that nobody will give."""
        return self.has_ended or (self._state in INTERRUPTED_STATES and not self.is_waiting)

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
        """Replace the state by a whole task; return the new text."""
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
        """Return why a task did not complete; its question may be in an artifact."""
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
    """Return A2A's name for a state; "" if unset, "unknown" for an undefined number."""
    if state == TaskState.TASK_STATE_UNSPECIFIED:
        return ""
    try:
        return TaskState.Name(state).removeprefix("TASK_STATE_").lower().replace("_", "-")
    except ValueError:
        return "unknown"
