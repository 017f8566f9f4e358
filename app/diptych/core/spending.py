"""The run's own budget: usage computed from its events, and the consequences (loop.md §8).

Without tokens, money or model calls left, the run fails with `budget_exhausted`. Without steps
left, phase 1 ends as at `max_steps`. Without tool calls left, calls are denied and the model
continues without them.
"""

from collections.abc import Sequence
from typing import Any, TypeGuard

from diptych.core.budget import UNLIMITED, Budget, Limit, Prices, limit_text
from diptych.core.call_graph import failure
from diptych.core.commands import MakeCall
from diptych.core.events import Failed, Returned
from diptych.core.excerpts import READER
from diptych.core.messages import NO_USE, Call, Delegation, Result, ToolCall, Usage, Used
from diptych.core.state import Run, updated

EXHAUSTED = "budget_exhausted"
_FOR_A_MODEL_CALL: tuple[Limit, ...] = ("tokens", "cost", "model_calls")
_FOR_A_RUN: tuple[Limit, ...] = (*_FOR_A_MODEL_CALL, "steps")
_MAY_GO_OVER: tuple[Limit, ...] = ("tokens", "cost")
_LOST = frozenset({"unknown", "timeout", "interrupted"})  # the child may still be working
_MANIFEST_NAMES = {
    "model_calls": "modelCalls",
    "tool_calls": "toolCalls",
    "wall_clock": "wallClock",
}


def used_by(run: Run) -> Used:
    """Return a run's usage, including its children's."""
    usage, prices = run.usage, run.settings.prices
    prompt, reply, cost = usage.prompt_tokens, usage.completion_tokens, NO_USE.cost
    if prices:
        of_prompt, of_reply = prices.of_one
        cost = of_prompt * prompt + of_reply * reply
    own = Used(prompt + reply, cost, run.model_calls, run.tool_calls, run.step)
    return own if run.delegated is NO_USE else own + run.delegated


def is_counted(call: Call) -> bool:
    """Whether a call counts as a tool call: delegations and `result__read` do not."""
    return isinstance(call, ToolCall) and call.name != READER


def gets_share(call: Call, run: Run) -> TypeGuard[Delegation]:
    """Whether a call gets a share of the budget: delegations to agents that report usage."""
    if not isinstance(call, Delegation):
        return False
    peer = run.catalog.agent(call.agent)
    return peer is None or peer.gets_conversation is None


def ends_phase_1(run: Run) -> Limit | None:
    """Return the limit that allows no further step, if any.

    With `on_max_steps: answer`, the last model call is reserved for the answer.
    """
    if not run.budget.limits:
        return None
    steps, model_calls, below = run.budget.steps, run.budget.model_calls, run.delegated
    if steps is not None and run.step + below.steps >= steps:
        return "steps"
    is_last = model_calls is not None and model_calls - run.model_calls - below.model_calls == 1
    keeps_one = run.settings.on_max_steps == "answer"
    return "model_calls" if is_last and keeps_one and run.step else None


def exhausted(run: Run) -> Failed | None:
    """Return the failure of a run that may not call the model again, if so."""
    budget = run.budget
    if not budget.limits:
        return None
    used = used_by(run)
    limit = budget.gone(used, *_FOR_A_MODEL_CALL)
    return used_up(limit, used, budget) if limit else None


def used_up(limit: Limit, used: Used, budget: Budget, scope: str = "") -> Failed:
    """Return the failure for an exhausted limit; `scope` is as in `limit_place`."""
    whose = {"perSession": "the session has", "perDay": "the agent has for today"}
    text = limit_text(limit, used, budget)
    place = limit_place(limit, scope)
    return Failed(EXHAUSTED, f"{whose.get(scope, 'the run has')} used up {place}: {text}")


def all_reserved(limit: Limit, scope: str) -> Failed:
    """Return the failure for a limit whose remainder is reserved; see `used_up`."""
    place = limit_place(limit, scope)
    return Failed(
        EXHAUSTED, f"the rest of {place} is reserved by other runs or by this run's delegations"
    )


def limit_place(limit: Limit, scope: str = "") -> str:
    """Return a limit's name in the manifest: `budget.perDay.toolCalls`.

    `scope` is `perSession`, `perDay`, or "" for the run's own budget.
    """
    name = _MANIFEST_NAMES.get(limit, limit)
    return ".".join(filter(None, ("budget", scope, name)))


def denied_call(run: Run, command: MakeCall, before: Sequence[MakeCall]) -> Returned | None:
    """Return the result of a call that exceeds the budget; None if it may be made.

    `before` are the calls about to be made with it. Calls begun by a former owner are counted
    already.
    """
    if not run.budget.limits or command.is_retry:
        return None
    if isinstance(command.call, Delegation):
        if not gets_share(command.call, run):
            return None
        share = shares(run, [*before, command])[command.call.id]
        gone = share.gone(NO_USE, *_FOR_A_RUN)
        if gone is None:
            return None
        text = f"{limit_place(gone)} is used up, or given to other agents"
        return failure(command.call, "denied", f"denied: {text}")
    limit = run.budget.tool_calls
    if limit is None or not is_counted(command.call):
        return None
    others = sum(is_counted(each.call) and not each.is_retry for each in before) if before else 0
    if run.tool_calls + run.delegated.tool_calls + others < limit:
        return None
    used = used_by(run) + Used(tool_calls=others)
    text = limit_text("tool_calls", used, run.budget)
    reason = f"denied: {limit_place('tool_calls')} is used up ({text}); go on without tools"
    return failure(command.call, "denied", reason)


def shares(run: Run, commands: Sequence[MakeCall]) -> dict[str, Budget]:
    """Return the budget shares of delegations about to start, by call id.

    A step's delegations without a result divide the remaining budget evenly. Those begun by a
    former owner keep their share.
    """
    new = [each.call for each in commands if not each.is_retry]
    delegations = [call for call in new if gets_share(call, run)]
    if not delegations:
        return {}
    if not run.budget:
        return dict.fromkeys((call.id for call in delegations), UNLIMITED)
    done = {result.call_id for result in run.results} | run.shares.keys()
    unfinished = sum(gets_share(call, run) and call.id not in done for call in run.calls)
    left = run.budget.left(used_by(run))
    for held in run.shares.values():
        left = left.left(as_used(held))
    found: dict[str, Budget] = {}
    for number, call in enumerate(delegations):
        found[call.id] = share = left.share(max(1, unfinished - number))
        left = left.left(as_used(share))
    return found


def take_child_use(run: Run, result: Result) -> Run:
    """Count a child's usage, whatever its outcome."""
    share = run.shares.get(result.call_id, UNLIMITED)
    used = child_use(result, share, run.settings.prices)
    if result.call_id in run.shares:
        rest = {call_id: held for call_id, held in run.shares.items() if call_id != result.call_id}
        run = updated(run, shares=rest)
    return run if used == NO_USE else updated(run, delegated=run.delegated + used)


def child_use(result: Result, share: Budget, prices: Prices | None) -> Used:
    """Return a delegation's usage as the child reports it; a lost child counts for its whole share.

    A report counts at most for what the share allowed. Usage without a cost is priced by this
    agent.
    """
    child = result.child
    if child is None or (child.used is None and child.usage is None):
        return as_used(share) if result.error in _LOST else NO_USE
    usage = child.usage or Usage()
    used = child.used or Used(usage.prompt_tokens + usage.completion_tokens)
    if prices and not used.cost:
        used = used._replace(cost=prices.cost(usage))
    return capped(used, share)


def capped(used: Used, share: Budget) -> Used:
    """Return usage, capped at the share.

    Tokens and money may exceed it up to twice, by the last request.
    """
    limits = ((name, limit * (2 if name in _MAY_GO_OVER else 1)) for name, limit in share.limits)
    over: dict[str, Any] = {name: limit for name, limit in limits if getattr(used, name) > limit}
    return used._replace(**over) if over else used


def as_used(budget: Budget) -> Used:
    """Return the usage of a fully used budget; dimensions without a limit are 0."""
    amounts: dict[str, Any] = {name: limit for name, limit in budget.limits}  # noqa: C416 - typed
    return Used(**amounts)


def warnings(before: Run, after: Run) -> list[Limit]:
    """Return the limits whose warning threshold (80 %) an event crossed."""
    is_same = before.usage is after.usage and before.delegated is after.delegated
    if is_same and before.tool_calls == after.tool_calls and before.step == after.step:
        return []
    return after.budget.warnings(used_by(before), used_by(after))
