"""A run's answer for callers in Python: as text, or as an object."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import orjson
from pydantic import BaseModel, ValidationError

from diptych.core.codec import TERMINAL, Record
from diptych.core.errors import DiptychError, InvalidRequest
from diptych.core.messages import JSONObject
from diptych.core.output_schema import schema_problem
from diptych.runs.answers import whole_answer
from diptych.runs.subscription import HANDED_OVER

Output = TypeVar("Output", bound=BaseModel)
OutputForm: TypeAlias = type[BaseModel] | Mapping[str, Any]
"""The form of an answer: a pydantic model, or a JSON schema."""


class RunError(DiptychError):
    """A run gave no answer here; `code` is that of its failure, `aborted`, or `handed_over`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


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


def read_answer(records: Sequence[Record]) -> str:
    """Return the text of all answers of a run. Raises `RunError`."""
    end = records[-1]
    match end.event_type:
        case "failed":
            raise RunError(str(end.metadata["code"]), str(end.content))
        case "aborted":
            raise RunError("aborted", str(end.content))
        case event_type if event_type in TERMINAL:
            return whole_answer(records) or ""
        case _:
            raise RunError(HANDED_OVER, "this agent was closed; the run goes on at another one")


def read_output(output: OutputForm, records: Sequence[Record]) -> Any:  # noqa: ANN401 - JSON
    """Read the newest answer of a run as JSON. Raises `RunError`."""
    read_answer(records)
    answers = [record for record in records if record.event_type == "agent_response"]
    if records[-1].event_type == "max_steps" or not answers:
        raise RunError("max_steps", str(records[-1].content))
    answer = str(answers[-1].content)
    if not isinstance(output, type):
        return orjson.loads(answer)
    try:
        return output.model_validate_json(answer)
    except ValidationError as error:  # of what a JSON schema cannot say
        raise RunError("invalid_output", f"the answer is no {output.__name__}: {error}") from error
