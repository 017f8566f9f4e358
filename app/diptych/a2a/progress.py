"""What another agent has sent of a task so far, as the result of a delegation."""

from enum import Enum, auto

from a2a.types import Artifact, Message, StreamResponse, Task, TaskState, TaskStatus
from google.protobuf.struct_pb2 import Struct

from diptych.a2a import extension
from diptych.a2a.claimed_use import ClaimedUse
from diptych.a2a.content import MAX_ANSWER_CHARS, Content, content_of, last_words
from diptych.a2a.metadata import extension_value
from diptych.a2a.reports import TaskReport, read_report
from diptych.core.errors import DelegationError
from diptych.core.messages import CallOutput, ChildRun, Usage, Used
from diptych.core.text import one_line, well_formed
from diptych.net.redaction import SECRETS

MAX_ARTIFACTS = 100  # of a task; what comes after is not kept
MAX_REASON_CHARS = 2_000
MAX_PARTIAL_CHARS = 64 * 1024  # of what a task had said that did not complete
MAX_TOLD_PARTIAL_CHARS = 2_000  # of these, that the model reads
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


class Stage(Enum):
    """How far a delegation is, in A2A's terms (section 4.1.3)."""

    SENT = auto()
    """The agent has named no task."""
    RUNNING = auto()
    INTERRUPTED = auto()
    """The agent wants something from us before it goes on, which a delegation never gives.

    An approval that an agent of ours tells us of is none such: somebody else gives that.
    """
    ENDED = auto()


class TaskProgress:
    """The task of one delegation, put together from what its agent sends.

    `url` is the base URL of that agent, `claims` holds what it says to have used against what is
    known. A task that `has_pieces` may hold an artifact as the pieces in which it was streamed.
    """

    def __init__(self, url: str = "", claims: ClaimedUse | None = None) -> None:
        self.task_id = ""
        self._url = url
        self.has_pieces = False
        self._claims = claims
        self.report = TaskReport()
        self.waits_for_approval = False  # a call of it or below it, as its events say
        self._state = TaskState.TASK_STATE_UNSPECIFIED
        self._status_text = ""  # the newest; not each status has one
        self._is_status_said = False  # whether the newest status has one
        self._last_words = ""  # of the agent, in the task's history
        self._message: Content | None = None
        self._artifacts: dict[str, Content] = {}

    @property
    def stage(self) -> Stage:
        if self._message is not None or self._state in TERMINAL_STATES:
            return Stage.ENDED
        if self._state in INTERRUPTED_STATES and not self._awaits_decision:
            return Stage.INTERRUPTED
        return Stage.RUNNING if self.task_id else Stage.SENT

    @property
    def _awaits_decision(self) -> bool:
        """Whether it is interrupted by an approval only: somebody decides, and it goes on."""
        is_asking = self._state == TaskState.TASK_STATE_INPUT_REQUIRED
        return is_asking and self.waits_for_approval

    @property
    def is_settled(self) -> bool:
        """Whether there is nothing more to wait for: the task has ended or is interrupted."""
        return self.stage in (Stage.ENDED, Stage.INTERRUPTED)

    @property
    def is_completed(self) -> bool:
        """Whether it has ended with its answer."""
        return self._message is not None or self._state == TaskState.TASK_STATE_COMPLETED

    def apply(self, event: StreamResponse) -> str:
        """Apply an event; give the new text of the answer."""
        match event.WhichOneof("payload"):
            case "task":
                return self.apply_task(event.task)
            case "message":
                return self._apply_message(event.message)
            case "status_update":
                self.task_id = self.task_id or event.status_update.task_id
                self._apply_status(event.status_update.status)
                self.apply_report(event.status_update.metadata)
                return ""
            case "artifact_update":
                update = event.artifact_update
                self.task_id = self.task_id or update.task_id
                return self._apply_artifact(update.artifact, appends=update.append)
            case _:
                return ""

    def apply_task(self, task: Task) -> str:
        """Apply a whole task, which replaces all that came before; give the new text."""
        self.task_id = task.id
        self._apply_status(task.status)
        self.apply_report(task.metadata)
        before = self._text()
        self._artifacts.clear()
        for artifact in task.artifacts:
            self._apply_artifact(artifact, appends=False, as_pieces=self.has_pieces)
        self._last_words = last_words(task.history) or self._last_words
        return self._text().removeprefix(before)

    def call_output(self, agent: str) -> CallOutput:
        """Give the result of a task that is settled; `agent` is the name of who had it.

        Raises `DelegationError` if the task is not completed.
        """
        if self._message is not None:
            message = self._message
            return CallOutput(message.text, message.value, message.finish_reason, self.child())
        match self._state:
            case TaskState.TASK_STATE_COMPLETED:
                values = [a.value for a in self._artifacts.values() if a.value is not None]
                reasons = [a.finish_reason for a in self._artifacts.values()]
                return CallOutput(
                    self._text() or self._words(),
                    values[-1] if values else None,
                    next((reason for reason in reasons if reason != "stop"), "stop"),
                    self.child(),
                )
            case TaskState.TASK_STATE_REJECTED:
                problem = "rejected the task"
            case TaskState.TASK_STATE_CANCELED:
                problem = "canceled the task"
            case TaskState.TASK_STATE_INPUT_REQUIRED:
                problem = "asked for input"
            case TaskState.TASK_STATE_AUTH_REQUIRED:
                problem = "asked for authorization"
            case _:
                problem = "failed"
        raise DelegationError("failed", f"agent {agent} {problem}: {self._reason()}")

    @property
    def used(self) -> tuple[Usage | None, Used | None]:
        """What the agent says that the task has used by now, with its children."""
        return self.report.usage, self._used

    @property
    def _used(self) -> Used | None:
        if self._claims is None:
            return self.report.used
        return self._claims.counted(self.report, has_ended=self.is_settled)

    def child(self) -> ChildRun:
        """Say what is known of the task by now."""
        state = "" if self._state == TaskState.TASK_STATE_UNSPECIFIED else _state_name(self._state)
        if self._message is not None:
            state = "completed"
        has_answer = self.is_completed
        return ChildRun(
            self._url,
            one_line(self.task_id, MAX_TASK_ID_CHARS),
            state,
            "" if has_answer else self.report.code,
            self.report.usage,
            "" if has_answer else SECRETS.redact(well_formed(self._text()))[:MAX_PARTIAL_CHARS],
            self._used,
        )

    def _reason(self) -> str:
        """Say why a task did not complete; what is asked for may stand in an artifact alone."""
        is_asking = self._state in INTERRUPTED_STATES
        if is_asking and not self._text_at_end() and (asked := self._text()):
            return asked[:MAX_REASON_CHARS]
        unsaid = "it did not say what" if is_asking else "it gave no reason"
        return f"{self._status_text[:MAX_REASON_CHARS] or unsaid}{self._said()}"

    def _words(self) -> str:
        """Give the answer of a task without artifacts."""
        return self._text_at_end() or self._last_words or self._status_text

    def _text_at_end(self) -> str:
        """Give what the newest status says: one from before may say no more than that it works."""
        return self._status_text if self._is_status_said else ""

    def _said(self) -> str:
        """Quote what a task had said that did not complete."""
        text = self._text()
        if not text.strip():
            return ""
        more = "…" if len(text) > MAX_TOLD_PARTIAL_CHARS else ""
        return f"\nUntil then it had said: {text[:MAX_TOLD_PARTIAL_CHARS]}{more}"

    def apply_report(self, metadata: Struct) -> None:
        """Keep what the agent says of the task, if it speaks our extension."""
        if (about := extension_value(metadata)) is not None:
            report = read_report(about)
            known = self.report
            usage, used = report.usage or known.usage, report.used or known.used
            self.report = TaskReport(usage, report.code, used, report.is_unreadable)

    def _apply_status(self, status: TaskStatus) -> None:
        self._state = status.state
        self._is_status_said = status.HasField("message")
        if self._is_status_said:
            self._status_text = content_of(status.message.parts).text

    def _apply_message(self, message: Message) -> str:
        self._message = content_of(message.parts)
        return self._message.text

    def _apply_artifact(self, artifact: Artifact, *, appends: bool, as_pieces: bool = False) -> str:
        self.has_pieces |= appends
        known, before = self._artifacts.get(artifact.artifact_id), ""
        if not appends or known is None:
            if len(self._artifacts) >= MAX_ARTIFACTS or self._size() > MAX_ANSWER_CHARS:
                return ""
            self._artifacts[artifact.artifact_id] = Content()
            before = known.text if known else ""
        content = self._artifacts[artifact.artifact_id]
        if (about := extension_value(artifact.metadata)) is not None:
            content.finish_reason = extension.read_finish_reason(about)
        return content.add(artifact.parts, as_pieces=as_pieces).removeprefix(before)

    def _size(self) -> int:
        return sum(content.size for content in self._artifacts.values())

    def _text(self) -> str:
        return "\n\n".join(text for a in self._artifacts.values() if (text := a.text))


def _state_name(state: int) -> str:
    """Give the word of A2A for a state; a number that it does not know is none of its words."""
    try:
        return TaskState.Name(state).removeprefix("TASK_STATE_").lower().replace("_", "-")
    except ValueError:
        return "unknown"
