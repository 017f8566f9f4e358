"""The queued messages of a run: how they arrive, join the conversation, and are cleared (§6).

A steering message joins before the next model request. Follow-ups begin the next turn after the
answer, as do steering messages that arrive during the answer.
"""

from collections.abc import Sequence
from dataclasses import replace

from diptych.core.events import MessageQueued, QueueCleared
from diptych.core.messages import Message
from diptych.core.state import MAX_MESSAGES_PER_RUN, Queues, Run, append_question, updated
from diptych.core.stuck import forget_repeats


def takes(run: Run, item: MessageQueued | QueueCleared) -> bool:
    """Whether a message or a request to clear the queue is new and within the limit."""
    if isinstance(item, QueueCleared):
        item_id, taken = item.clear_id, run.queues.clear_ids
    else:
        item_id, taken = item.message_id, run.queues.message_ids
    return item_id not in taken and len(taken) < MAX_MESSAGES_PER_RUN


def put_message(run: Run, event: MessageQueued) -> Run:
    """Queue a message; check `takes` first."""
    queues = replace(run.queues, message_ids=run.queues.message_ids | {event.message_id})
    if event.is_follow_up:
        queues = replace(queues, follow_ups=(*queues.follow_ups, event))
    else:
        queues = replace(queues, steering=(*queues.steering, event))
    return updated(run, queues=queues)


def queued_messages(run: Run) -> tuple[MessageQueued, ...]:
    """Return the queued messages in the order in which they would join."""
    return run.queues.steering + run.queues.follow_ups


def clearing(run: Run, asked: QueueCleared) -> QueueCleared:
    """Complete a request to clear the queue with the ids of the messages it drops."""
    due = (m.message_id for m in queued_messages(run) if asked.clears(m))
    return replace(asked, message_ids=tuple(due))


def clear_messages(run: Run, event: QueueCleared) -> Run:
    """Drop queued messages."""
    gone = frozenset(event.message_ids)
    dropped = [m for m in queued_messages(run) if m.message_id in gone]
    queues = _without(run.queues, dropped)
    clear_ids = queues.clear_ids | {event.clear_id}
    return updated(run, queues=replace(queues, clear_ids=clear_ids))


def deliver_next(run: Run) -> Run:
    """Deliver steering messages, one or all, according to `queue_mode`."""
    return _join(run, _due(run, run.queues.steering))


def deliver_steering(run: Run) -> Run:
    """Deliver all steering messages: before the run begins, or when no step is left."""
    return _join(run, run.queues.steering)


def deliver_all(run: Run) -> Run:
    """Deliver all queued messages at the run's end, so that the conversation keeps them."""
    return _join(run, queued_messages(run))


def begin_turn(run: Run) -> Run:
    """Begin a turn with queued messages, one or all, according to `queue_mode`."""
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
    """Add messages to the conversation, and reset the count of rejected replies."""
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
