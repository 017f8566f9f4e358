# ruff: noqa: INP001 - a script, no package
"""Writes `docs/reference/events.md`: every event of a run's log, and every live notice.

The names come from the log's own table; an event without a description here is an error.
"""

from pathlib import Path

from diptych.core.codec import EVENT_TYPES, NOT_IN_MEMORY_VIEW, TERMINAL

FILE = Path(__file__).parents[2] / "docs" / "reference" / "events.md"
HEAD = """\
# Events

<!-- tools/reference/events.py writes this page. -->

A run's log is a list of events, numbered `seq` 1, 2, 3 … `GET /v1/runs/{id}/events` streams them,
live or replayed; `GET /memory/events` and `diptych events` list those marked *memory*. Each has
`event_type`, `timestamp` (seconds since the epoch), `content` and `metadata`.
[HTTP](../http.md#streams) explains the stream, the [specification](../spec/loop.md) the rules.

## In the log

| event | meaning | content | metadata | memory |
|---|---|---|---|---|
"""
NOTICES = """
*Ends the run*: a run has exactly one such event, its last.

## Live only

Notices reach the readers who follow the run at that moment. They have no `seq` and are never
replayed. In a chat's stream they are empty chunks under `event: progress`.

| notice | meaning | fields |
|---|---|---|
"""
_CALL = "`call_id`, `step`, and `id`, `after` if the model set them"
_RESULT = "`call_id`, the name called (`tool` or `agent`), `value`, `error`, `hook`"
_CHILD = f"{_RESULT}, `child`: the other agent's `url`, `task_id`, `state`, `code`, `usage`, `used`"
_ABOUT: dict[str, tuple[str, str, str]] = {
    "user_message": (
        "The request that started the run, or a message sent to it later.",
        "the text",
        "first: `format`, `system`, `parameters`, `subject` …; later: `message_id`, `follow_up`",
    ),
    "queue_cleared": ("Waiting messages were dropped.", "their ids", "`clear_id`, `subject`"),
    "offered": (
        "The catalog, prompt and settings are fixed for this run.",
        "a hash",
        "`action_format`, `budget`, `prices`, `context`",
    ),
    "owner_changed": ("Another process took the run over.", "", "`lost_tail`"),
    "action_format": ("The endpoint refused native calls.", "the format now used", "`reason`"),
    "model_reply": (
        "The model replied.",
        "the text",
        "`usage`, `finish_reason`, `tool_calls`, `reasoning`",
    ),
    "context_refused": (
        "The endpoint refused the request as too long.",
        "",
        "`max_tokens`, `prompt_tokens`",
    ),
    "compacted": (
        "A summary replaced older messages.",
        "the summary",
        "`keeps`, `usage`, `error`",
    ),
    "action_error": (
        "A reply looked like a call and could not be carried out.",
        "what is wrong",
        "`error_type`, `said`",
    ),
    "call_judged": (
        "Hooks decided on a call.",
        "`allow`, `rewrite` or `deny`",
        "`call_id`, `hook`, `reason`, `call`",
    ),
    "step_judged": ("Hooks decided on a step.", "`end` or `go on`", "`step`, `hook`"),
    "answer_judged": ("Hooks decided on an answer.", "the problem, or empty", "`hook`"),
    "approval_requested": (
        "A call waits for a person, here or at an agent below.",
        "the call",
        f"{_CALL}; `expires_at`, `reason`; below: `path`, `agent`, `child`",
    ),
    "approval_decided": (
        "Somebody decided on it, or it expired.",
        "`approve`, `reject`, `edit`, `replace` or `closed`",
        "`call_id`, `decision_id`, `reason`, `subject`, `is_expired`, `call`; below: `path`, `seq`",
    ),
    "input_requested": (
        "A call asks a person, or its caller for a tool's result, here or at an agent below.",
        "the question",
        "`call_id`, `kind`, `schema` or `url`, `expires_at`; below: `path`, `agent`, `child`",
    ),
    "input_received": (
        "Somebody answered, or it expired. What was answered is not shown.",
        "`accept`, `decline`, `cancel` or `closed`",
        "`call_id`, `input_id`, `seq`, `subject`, `caller`, `is_expired`; below: `path`",
    ),
    "tool_call": ("A tool call is about to be sent.", "`tool`, `arguments`", _CALL),
    "tool_result": ("It succeeded.", "the text the model reads", _RESULT),
    "tool_error": ("It failed.", "the text the model reads", _RESULT),
    "delegation_request": (
        "A task is about to be sent to another agent.",
        "`agent`, `task`",
        f"{_CALL}; `context_id`, `budget`",
    ),
    "delegation_response": ("The other agent answered.", "the answer", _CHILD),
    "delegation_error": ("The delegation failed.", "the text the model reads", _CHILD),
    "text": ("A piece of the answer.", "the text", ""),
    "answer_reset": (
        "The text since `from_seq` is void: the answer starts over.",
        "",
        "`from_seq`, `attempt`",
    ),
    "agent_response": ("The whole answer.", "the text", "`finish_reason`, `is_json`"),
    "completed": ("The run has its answer.", "", "`finish_reason`, `usage`"),
    "failed": ("The run failed.", "the message", "`code`, `text`"),
    "aborted": ("The run was cancelled.", "the reason", ""),
    "max_steps": ("The run is out of steps.", "what was found so far", "`results`, `usage`"),
}
_LIVE: dict[str, tuple[str, str]] = {
    "progress": ("A call starts.", "`step`, `max_steps`, `action`, `target`"),
    "tool_progress": ("A tool server reports progress.", "`call_id`, `target`, `message`"),
    "delegation_progress": (
        "Text or an event of an agent below.",
        "`call_id`, `target`, `path`, `content`, `event`",
    ),
    "reasoning": ("The model's reasoning.", "`content`"),
    "model_wait": (
        "A retry, a fallback, or a late first byte.",
        "`kind`, `model`, `endpoint`, `message`",
    ),
    "format_warning": ("A reply was prose with something like a call in it.", "`message`"),
    "budget_warning": ("80 % of a limit is used.", "`budget`, `used`, `limit`"),
    "budget": ("At the end: what a run with limits used.", "`used`, `limits`"),
}


def text() -> str:
    """Return the page."""
    names = dict.fromkeys(name for names in EVENT_TYPES.values() for name in names)
    rows = "".join(_row(name, *_ABOUT[name]) for name in names)
    live = "".join(f"| `{name}` | {about} | {keys} |\n" for name, (about, keys) in _LIVE.items())
    return HEAD + rows + NOTICES + live


def _row(name: str, about: str, content: str, metadata: str) -> str:
    end = " *Ends the run.*" if name in TERMINAL else ""
    memory = "" if name in NOT_IN_MEMORY_VIEW else "yes"
    return f"| `{name}` | {about}{end} | {content} | {metadata} | {memory} |\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
