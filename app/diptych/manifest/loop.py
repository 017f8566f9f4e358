"""The part of a manifest that bounds a run."""

from typing import Annotated

from pydantic import Field

from diptych.core.run_settings import AnswerMode, OnMaxSteps, RunSettings
from diptych.manifest.durations import Duration
from diptych.manifest.settings import DEADLINE
from diptych.manifest.strict_model import StrictModel

_DEFAULTS = RunSettings()


class LoopSpec(StrictModel):
    """The bounds of a run.

    A new field stands here and, under the same name, in `RunSettings`, where a run reads it; then
    `make format` writes CRD and reference (after a release it says since when: see
    `tools/reference/manifest.py`). `config.resolver`, the record and the Python API take all fields
    as they are (but `deadline`, which is no setting of the loop).
    """

    max_steps: Annotated[int, Field(ge=1, le=100)] = _DEFAULTS.max_steps
    """The most steps of a run. In each step the model asks for calls, and gets their results."""
    on_max_steps: OnMaxSteps = _DEFAULTS.on_max_steps
    """What happens after the last step: `stop` ends the run with a text that says so, `answer` lets
    the model answer from the results so far."""
    answer_mode: AnswerMode = _DEFAULTS.answer_mode
    """How the answer is made: `separate` asks the model for it in a request of its own; with
    `direct` a reply that calls nothing is the answer, which saves a request."""
    max_calls_per_step: Annotated[int, Field(ge=1, le=64)] = _DEFAULTS.max_calls_per_step
    """The most calls that one reply of the model may ask for; the same call asked for twice counts
    once. A reply that asks for more is refused, and nothing of it runs."""
    max_parallel_calls: Annotated[int, Field(ge=1, le=64)] = _DEFAULTS.max_parallel_calls
    """The most calls of one step that run at the same time."""
    max_retries: Annotated[int, Field(ge=0, le=100)] = _DEFAULTS.max_retries
    """How many replies in a row that cannot be read the model may correct. After the next one, the
    agent answers from the results so far."""
    answer_repairs: Annotated[int, Field(ge=0, le=10)] = _DEFAULTS.answer_repairs
    """How often the model may correct an answer that does not fit `outputSchema`, or the schema of
    the request."""
    memory_context_limit: Annotated[int, Field(ge=0, le=100)] = _DEFAULTS.memory_context_limit
    """The most messages of the conversation that a delegation carries with its task."""
    deadline: Duration = DEADLINE
    """How long a run may take. The time that it waits in its session's queue does not count."""
