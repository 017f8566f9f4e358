"""A model with a context window: it refuses longer requests, and has a tokenizer of its own."""

import json
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field

from diptych.core.errors import ModelError
from diptych.core.messages import Message, Usage
from diptych.core.model_request import ModelRequest
from diptych.ports import Delta, Reply

_WORDS = re.compile(r"[A-Za-z]{1,6}|\d|[^\sA-Za-z\d]|\s{2,}")


def words(text: str) -> int:
    """Count as a tokenizer of English does: pieces of words, digits, signs."""
    return len(_WORDS.findall(text))


def bytes_by_two(text: str) -> int:
    """Count as a small tokenizer does that knows few words."""
    return len(text.encode()) // 2


def bytes_by_five(text: str) -> int:
    """Count as a large tokenizer does that knows many words."""
    return len(text.encode()) // 5


@dataclass
class WindowModel:
    """Makes `steps` calls of the tool `fetch` in each run, then answers.

    A request of more than `window` tokens is refused with `context_too_long`; `tells` says which
    numbers the refusal has. `usage` is false for an endpoint that reports none.
    """

    window: int
    count: Callable[[str], int] = words
    steps: int = 1
    tells: Sequence[str] = ("max_tokens", "prompt_tokens")
    usage: bool = True
    summary: str | None = "The user asked for pages, and got them."
    arguments: Callable[[int], dict[str, object]] = lambda n: {"page": n}
    refused: int = 0
    requests: list[tuple[Message, ...]] = field(default_factory=list)
    largest: int = 0
    summaries: int = 0
    calls: int = 0

    async def complete(self, request: ModelRequest) -> Reply:
        usage = self._take(request)
        if is_summary(request.messages):
            self.summaries += 1
            if self.summary is None:
                raise ModelError("model_failed", "no summary today")
            return Reply(self.summary, usage)
        last = _last_user(request.messages)
        made = re.findall(r"\[Step (\d+)/", last) or ["0"]
        if int(made[-1]) < self.steps:
            self.calls += 1
            call = {"tool": "fetch", "arguments": self.arguments(self.calls)}
            return Reply(json.dumps(call), usage)
        return Reply("{}", usage)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta]:
        usage = self._take(request)
        yield Delta("Here it is.")
        yield Delta(usage=usage, finish_reason="stop")

    def _take(self, request: ModelRequest) -> Usage:
        tokens = sum(self.count(m.content) + 4 for m in request.messages) + 3
        if tokens > self.window:
            self.refused += 1
            told = {"max_tokens": self.window, "prompt_tokens": tokens}
            raise ModelError(
                "context_too_long", "too long", **{name: told[name] for name in self.tells}
            )
        self.requests.append(request.messages)
        self.largest = max(self.largest, tokens)
        return Usage(tokens, 5) if self.usage else Usage()


def is_summary(messages: Sequence[Message]) -> bool:
    """Whether a request asks for a summary."""
    return messages[-1].content.startswith("Summarize the conversation below")


def _last_user(messages: Sequence[Message]) -> str:
    return next(m.content for m in reversed(messages) if m.role == "user")
