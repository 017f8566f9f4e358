"""The contract with other agents: what a delegation is, and what is told of its task."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from diptych.core.budget import UNLIMITED, Budget
from diptych.core.catalog import Peer, Unavailable
from diptych.core.messages import JSON, CallOutput, ChildRun, JSONObject, Message


@dataclass(frozen=True, slots=True)
class ChildEvent:
    """What happened in a task at another agent, or in one below it, as that agent tells it.

    `type`, `seq`, `timestamp`, `content` and `metadata` are those of a record, cut where they are
    long; `seq` is 0 for what is on no record. `path` holds the calls that lead from the task's run
    to that of the event.
    """

    type: str
    path: tuple[str, ...] = ()
    seq: int = 0
    timestamp: float = 0.0
    content: JSON = None
    metadata: JSONObject = field(default_factory=dict)


DelegationProgress = Callable[[str | ChildRun | ChildEvent], None]
"""Called with a sub-agent's text, with its task when more of it is known, and with what happens in
it. Must not block."""


@dataclass(frozen=True, slots=True)
class DelegationRequest:
    """A delegation, ready to be sent (loop.md §5).

    `context_id` is new for every delegation. `path` holds the card URLs of the agents that the
    request has come through, the caller last. `seconds_left` is what the run has left. `subject` is
    whom the run works for, "" if nobody knows. `run_id` and `call_id` say which call it is.
    One that `is_taken_over` was sent by the run's former owner: its task is looked for by its
    context, and is gone on with. Where `leaves_task` gives true, a task goes on though nobody reads
    it here any more: another process takes it up. With `deadline_pauses` what is left stands still
    while a call below waits for approval.
    `budget` is what the task may use, with its own children.
    """

    agent: str
    task: str
    context_id: str
    context: tuple[Message, ...] = ()
    path: tuple[str, ...] = ()
    seconds_left: float | None = None
    traceparent: str | None = None
    subject: str = ""
    run_id: str = ""
    call_id: str = ""
    deadline_pauses: bool = False
    is_taken_over: bool = False
    leaves_task: Callable[[], bool] = bool
    budget: Budget = UNLIMITED


@dataclass(frozen=True, slots=True)
class ChildRef:
    """Which run at another agent: its id and that agent's URL, or the context of its delegation.

    `depth` is how many levels below it are wanted.
    """

    task_id: str
    url: str
    context_id: str
    depth: int


@dataclass(frozen=True, slots=True)
class ChildDecision:
    """A decision on a call of a run below, for the agent that the delegation called.

    `call_id` is the id of the call there, `subject` whom the decision is passed on for, "" if
    nobody knows. The rest is as in `runtime.decision_request.DecisionRequest`.
    """

    agent: str
    url: str
    task_id: str
    call_id: str
    decision: str
    reason: str = ""
    arguments: JSONObject | None = None
    call: JSONObject | None = None
    subject: str = ""


class Agents(Protocol):
    """The other agents that an agent may delegate to."""

    def snapshot(self) -> tuple[tuple[Peer, ...], tuple[Unavailable, ...]]:
        """The agents that can be asked now, in the manifest's order, without asking any."""
        ...

    async def delegate(
        self, request: DelegationRequest, progress: DelegationProgress
    ) -> CallOutput:
        """Give an agent a task and wait for its end.

        The output names the task as its `child`. Raises `DelegationError`, with the `child` if
        there was one.
        """
        ...

    async def decide(self, decision: ChildDecision) -> None:
        """Pass a decision on. Raises `DecisionRefused`."""
        ...

    async def run_tree(self, agent: str, child: ChildRef) -> JSON:
        """Give a run of a delegation and what is below it. Raises `DelegationError`."""
        ...
