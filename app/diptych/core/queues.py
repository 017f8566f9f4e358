"""The messages that wait in a run: how they come, join its conversation, and are cleared (§6).

A message that steers joins before the next request to the model. A follow-up begins the next turn
when this one has its answer, and so does a message that steers but comes during the answer.
"""

from dataclasses import replace

from diptych.core.events import MessageQueued, QueueCleared
from diptych.core.messages import Message
from diptych.core.state import MAX_MESSAGES_PER_RUN, Run, append_question, updated
from diptych.core.stuck import forget_repeats


def takes(run: Run, item: MessageQueued | QueueCleared) -> bool:
    """Whether a message, or what clears them, is new, and not one too many."""
    if isinstance(item, QueueCleared):
        return item.clear_id not in run.clear_ids and len(run.clear_ids) < MAX_MESSAGES_PER_RUN
    return item.message_id not in run.message_ids and len(run.message_ids) < MAX_MESSAGES_PER_RUN


def put_message(run: Run, event: MessageQueued) -> Run:
    """Let a message wait; see `takes`."""
    run = updated(run, message_ids=run.message_ids | {event.message_id})
    if event.is_follow_up:
        return updated(run, follow_ups=(*run.follow_ups, event))
    return updated(run, steering=(*run.steering, event))


def queued_messages(run: Run) -> tuple[MessageQueued, ...]:
    """Give the messages that wait, in the order in which they would join."""
    return run.steering + run.follow_ups


def clearing(run: Run, asked: QueueCleared) -> QueueCleared:
    """Name the messages that a request to clear drops now."""
    return replace(asked, message_ids=tuple(m.message_id for m in queued_messages(run)))


def clear_messages(run: Run, event: QueueCleared) -> Run:
    """Drop messages that wait."""
    gone = frozenset(event.message_ids)
    return updated(
        run,
        clear_ids=run.clear_ids | {event.clear_id},
        steering=tuple(m for m in run.steering if m.message_id not in gone),
        follow_ups=tuple(m for m in run.follow_ups if m.message_id not in gone),
    )


def deliver_next(run: Run) -> Run:
    """Let what steers join: one message, or all, as the run's `queue_mode` says."""
    return _join(run, _due(run, run.steering))


def deliver_steering(run: Run) -> Run:
    """Let all that steers join: before the run begins, or where it has no step left."""
    return _join(run, run.steering)


def deliver_all(run: Run) -> Run:
    """Let all that waits join, at the run's end: what was taken is in the conversation."""
    return _join(run, queued_messages(run))


def begin_turn(run: Run) -> Run:
    """Begin a turn with what waits: one message, or all, as the run's `queue_mode` says."""
    run = updated(forget_repeats(run), follow_ups=queued_messages(run), steering=())
    run = updated(run, step_limit=run.step + run.settings.max_steps, question="")
    return _join(run, _due(run, run.follow_ups))


def _due(run: Run, queue: tuple[MessageQueued, ...]) -> tuple[MessageQueued, ...]:
    return queue if run.settings.queue_mode == "all" else queue[:1]


def _join(run: Run, due: tuple[MessageQueued, ...]) -> Run:
    """Add messages to the conversation, and forget earlier rejections."""
    if not due:
        return run
    run = append_question(run, *(Message("user", each.message) for each in due))
    return updated(
        run,
        steering=tuple(m for m in run.steering if m not in due),
        follow_ups=tuple(m for m in run.follow_ups if m not in due),
        errors=0,
    )
