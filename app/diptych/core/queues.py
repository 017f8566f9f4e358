"""The messages that wait in a run: how they come, join its conversation, and are cleared (§6).

A message that steers joins before the next request to the model. A follow-up begins the next turn
when this one has its answer, and so does a message that steers but comes during the answer.
"""

from collections.abc import Sequence
from dataclasses import replace

from diptych.core.events import MessageQueued, QueueCleared
from diptych.core.messages import Message
from diptych.core.state import MAX_MESSAGES_PER_RUN, Queues, Run, append_question, updated
from diptych.core.stuck import forget_repeats


def takes(run: Run, item: MessageQueued | QueueCleared) -> bool:
    """Whether a message, or what clears them, is new, and not one too many."""
    if isinstance(item, QueueCleared):
        item_id, taken = item.clear_id, run.queues.clear_ids
    else:
        item_id, taken = item.message_id, run.queues.message_ids
    return item_id not in taken and len(taken) < MAX_MESSAGES_PER_RUN


def put_message(run: Run, event: MessageQueued) -> Run:
    """Let a message wait; see `takes`."""
    queues = replace(run.queues, message_ids=run.queues.message_ids | {event.message_id})
    if event.is_follow_up:
        queues = replace(queues, follow_ups=(*queues.follow_ups, event))
    else:
        queues = replace(queues, steering=(*queues.steering, event))
    return updated(run, queues=queues)


def queued_messages(run: Run) -> tuple[MessageQueued, ...]:
    """Return the messages that wait, in the order in which they would join."""
    return run.queues.steering + run.queues.follow_ups


def clearing(run: Run, asked: QueueCleared) -> QueueCleared:
    """Name the messages that a request to clear drops now."""
    return replace(asked, message_ids=tuple(m.message_id for m in queued_messages(run)))


def clear_messages(run: Run, event: QueueCleared) -> Run:
    """Drop messages that wait."""
    gone = frozenset(event.message_ids)
    dropped = [m for m in queued_messages(run) if m.message_id in gone]
    queues = _without(run.queues, dropped)
    clear_ids = queues.clear_ids | {event.clear_id}
    return updated(run, queues=replace(queues, clear_ids=clear_ids))


def deliver_next(run: Run) -> Run:
    """Let what steers join: one message, or all, as the run's `queue_mode` says."""
    return _join(run, _due(run, run.queues.steering))


def deliver_steering(run: Run) -> Run:
    """Let all that steers join: before the run begins, or where it has no step left."""
    return _join(run, run.queues.steering)


def deliver_all(run: Run) -> Run:
    """Let all that waits join, at the run's end: what was taken is in the conversation."""
    return _join(run, queued_messages(run))


def begin_turn(run: Run) -> Run:
    """Begin a turn with what waits: one message, or all, as the run's `queue_mode` says."""
    run = updated(
        forget_repeats(run),
        queues=replace(run.queues, follow_ups=queued_messages(run), steering=()),
        step_limit=run.step + run.settings.max_steps,
        asked=replace(run.asked, text=""),
    )
    return _join(run, _due(run, run.queues.follow_ups))


def _due(run: Run, queue: tuple[MessageQueued, ...]) -> tuple[MessageQueued, ...]:
    return queue if run.settings.queue_mode == "all" else queue[:1]


def _join(run: Run, due: tuple[MessageQueued, ...]) -> Run:
    """Add messages to the conversation, and forget earlier rejections."""
    if not due:
        return run
    run = append_question(run, *(Message("user", each.message) for each in due))
    return updated(run, queues=_without(run.queues, due), errors=0)


def _without(queues: Queues, gone: Sequence[MessageQueued]) -> Queues:
    return replace(
        queues,
        steering=tuple(m for m in queues.steering if m not in gone),
        follow_ups=tuple(m for m in queues.follow_ups if m not in gone),
    )
