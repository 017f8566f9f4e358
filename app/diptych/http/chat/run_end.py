"""How the end of a run looks in a chat completion.

Not here: the completion itself (`http.chat`).
"""

from collections.abc import Sequence
from typing import Any

from diptych.loop.codec import Record
from diptych.ports import Item
from diptych.runtime.buffer import is_terminal


def end_of(batch: Sequence[Item]) -> Record | None:
    """Give the terminal record, if it is among these."""
    return next((item for item in batch if isinstance(item, Record) and is_terminal(item)), None)


def failure(end: Record) -> tuple[str, str]:
    """Give code and message of a run that failed or was aborted."""
    if end.event_type == "aborted":
        return "aborted", f"the run was aborted: {end.content}"
    return str(end.metadata["code"]), str(end.content)


def finish_reason(end: Record) -> str:
    """Map the end of a run as loop.md §2 says."""
    if end.event_type == "max_steps":
        return "length"
    return str(end.metadata["finish_reason"])


def usage(end: Record) -> dict[str, int]:
    """Give the tokens of all the run's own model calls, as OpenAI names them."""
    spent: Any = end.metadata["usage"]
    prompt, completion = spent["prompt_tokens"], spent["completion_tokens"]
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
