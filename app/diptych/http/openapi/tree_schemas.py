"""The schemas of a tree of runs."""

from typing import Any, Literal

from diptych.http.openapi.reply import Reply


class DelegationNode(Reply):
    """A delegation of a run, and the run that it became. Times are in seconds since the epoch."""

    call_id: str
    step: int
    agent: str
    task: str
    """The first 2,000 characters of it."""
    context_id: str
    status: str
    """`running`, `completed`, or the kind of its error."""
    started_at: float
    ended_at: float | None
    child: dict[str, Any] | None = None
    """What the record says of the task: `url`, `task_id`, `state`, `code`, `usage`."""
    run: dict[str, Any] | None = None
    """The run at the other agent: a tree itself, without `object`."""
    problem: str | None = None
    """Why that run is not shown."""


class RunTree(Reply):
    """A run and the runs below it. Times are in seconds since the epoch."""

    object: Literal["run.tree"]
    agent: str
    run_id: str
    status: str
    started_at: float
    ended_at: float | None
    model_calls: int
    tool_calls: int
    usage: dict[str, int]
    """The tokens of the run's own model calls, so far."""
    children_usage: dict[str, int]
    """What the delegations that have ended used, with all below them, as those agents say."""
    cost: str
    """What the run's own model calls cost so far, by `model.prices`: a decimal."""
    children_cost: str
    """The same of the delegations that have ended, as those agents say."""
    delegations: list[DelegationNode]
    code: str | None = None
    """Why the run has no answer."""
    parent: dict[str, Any] | None = None
    """The call that the run comes from, as its caller says: `agent`, `run_id`, `call_id`."""
