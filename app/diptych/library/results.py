"""A run's result for callers in Python, and the error of a run without one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import orjson
from pydantic import BaseModel, ValidationError

from diptych.budgets.recorded_use import RecordedUse
from diptych.core.codec import TERMINAL, Record
from diptych.core.errors import DiptychError, InvalidRequest
from diptych.core.messages import JSONObject, Usage
from diptych.core.output_schema import schema_problem
from diptych.core.waits import open_waits
from diptych.library.events import Approval, Event, approval_of
from diptych.runs.answers import whole_answer
from diptych.runs.subscription import HANDED_OVER

Output = TypeVar("Output", covariant=True)  # noqa: PLC0105 - `Output_co` would be shown to users
OutputForm: TypeAlias = type[BaseModel] | Mapping[str, Any]
"""The form of an answer: a pydantic model, or a JSON schema."""
WAITING = "input_required"
"""The code of a `RunError` for a run whose calls wait for approval."""
FinishReason: TypeAlias = Literal["stop", "length", "content_filter", "max_steps", "input_required"]


class RunError(DiptychError):
    """A run gave no answer here.

    `code` is that of its failure, `aborted`, `handed_over`, or `input_required` while calls wait
    for approval. `run_id` is what `resume` takes.
    """

    def __init__(self, code: str, message: str, run_id: str = "") -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.run_id = run_id


@dataclass(frozen=True, slots=True)
class RunResult(Generic[Output]):
    """What a run came to; `str(result)` is its text.

    `output` is the answer in the form that `output=` asked for, else its text; reading it raises
    `RunError` while calls wait for approval.
    `usage` is the tokens of the run and its sub-agents. With `approvals` the run is not over: these
    calls wait, and `Agent.decide` goes on with it.
    """

    run_id: str
    session_id: str
    text: str
    usage: Usage
    finish_reason: FinishReason
    approvals: tuple[Approval, ...] = ()
    events: tuple[Event, ...] = field(default=(), repr=False)
    form: OutputForm | None = field(default=None, repr=False)
    """What `output=` asked for."""
    value: Any = field(default=None, repr=False)

    @property
    def output(self) -> Output:
        """The answer in the form that `output=` asked for, else its text.

        Raises `RunError` while calls wait for approval.
        """
        if self.approvals:
            raise waiting_error(self.approvals, self.run_id)
        output: Output = self.value
        return output

    def __str__(self) -> str:
        return self.text


def waiting_error(approvals: Sequence[Approval], run_id: str) -> RunError:
    """Make the error of a run whose calls wait for approval."""
    calls = ", ".join(f"{each.call_id} ({each.tool or each.agent})" for each in approvals)
    return RunError(WAITING, f"calls wait for approval: {calls}; see Agent.decide", run_id)


def output_schema(output: OutputForm) -> JSONObject:
    """Return the JSON schema of a form. Raises `InvalidRequest` if it cannot be used."""
    schema: JSONObject
    if isinstance(output, type) and issubclass(output, BaseModel):
        schema = output.model_json_schema()
    elif isinstance(output, Mapping):
        schema = output
    else:
        raise InvalidRequest(
            f"output is a pydantic model or a JSON schema, and not {output!r}; "
            "make it a field of a model",
            param="output",
        )
    if problem := schema_problem(schema):
        raise InvalidRequest(f"the schema of the answer {problem.text}", param="output")
    return schema


def waiting_calls(records: Sequence[Record]) -> tuple[Approval, ...]:
    """Return the calls that wait for approval, as far as these records say."""
    asked = (approval.requested for approval in open_waits(records, "approval"))
    return tuple(approval_of(record.content, record.metadata) for record in asked)


def check_end(records: Sequence[Record]) -> None:
    """Raise `RunError` if a run has failed, or goes on elsewhere."""
    end = records[-1]
    match end.event_type:
        case "failed":
            raise RunError(str(end.metadata["code"]), str(end.content), end.run_id)
        case "aborted":
            raise RunError("aborted", str(end.content), end.run_id)
        case event_type if event_type not in TERMINAL:
            message = "this agent was closed; the run goes on at another one"
            raise RunError(HANDED_OVER, message, end.run_id)


def read_result(
    records: Sequence[Record],
    events: Sequence[Event],
    form: OutputForm | None,
    approvals: tuple[Approval, ...],
) -> RunResult[Any]:
    """Make the result of a run that has ended, or whose calls wait. Raises `RunError`."""
    if not approvals:
        check_end(records)
    text = whole_answer(records) or ""
    reason: Any = records[-1].metadata.get("finish_reason", "stop")
    if records[-1].event_type == "max_steps":
        reason = "max_steps"
    value = text if form is None or approvals else _read_value(form, records)
    return RunResult(
        records[0].run_id,
        records[0].session_id,
        text,
        RecordedUse(records).tree_usage,
        "input_required" if approvals else reason,
        approvals,
        tuple(events),
        form,
        value,
    )


def _read_value(form: OutputForm, records: Sequence[Record]) -> Any:  # noqa: ANN401 - JSON
    """Read the newest answer of a run as JSON. Raises `RunError`."""
    end = records[-1]
    answers = [record for record in records if record.event_type == "agent_response"]
    if end.event_type == "max_steps" or not answers:
        raise RunError("max_steps", str(end.content), end.run_id)
    answer = str(answers[-1].content)
    if not isinstance(form, type):
        return orjson.loads(answer)
    try:
        return form.model_validate_json(answer)
    except ValidationError as error:  # of what a JSON schema cannot say
        message = f"the answer is no {form.__name__}: {error}"
        raise RunError("invalid_output", message, end.run_id) from error
