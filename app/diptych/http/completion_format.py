"""A run as an OpenAI chat completion, whole or in chunks."""

from collections.abc import Mapping, Sequence
from typing import Any

from diptych.budgets.run_meter import BUDGET_WARNING
from diptych.core.codec import Record
from diptych.core.waits import REQUESTS, asked_fields
from diptych.http.answer_form import read_call
from diptych.http.caller_calls import CallerCall, Part
from diptych.net.sse import frame
from diptych.ports import Notice
from diptych.ports.entries import RunEntry
from diptych.runs.model_caller import MODEL_WAIT

DONE = b"data: [DONE]\n\n"
_CALL_ID_CHARS = 32
STREAMED_NOTICES = frozenset(
    {
        "progress",
        "tool_progress",
        "delegation_progress",
        "format_warning",
        MODEL_WAIT,
        BUDGET_WARNING,
        *REQUESTS,
    }
)


class CompletionFormat:
    """Formats one part of a run.

    `model` is the agent's name. With `tools` the answer is formatted as a call of one of these
    caller's tools.
    """

    def __init__(self, entry: RunEntry, model: str, part: Part, tools: Sequence[str] = ()) -> None:
        self.part = part
        self._entry = entry
        self._model = model
        self._tools = tools
        self._calls = 0  # that were streamed
        self._created = int(entry.created)

    def completion(self, answer: str, end: Record, reasoning: str = "") -> dict[str, Any]:
        """Return a part's whole completion; `end` is its last record."""
        message: dict[str, Any] = {"role": "assistant", "content": answer, "refusal": None}
        if self.part.waiting:
            message |= {"content": answer or None, "tool_calls": self._calls_waiting()}
        if self._tools and end.event_type == "completed":
            call = self._call(*read_call(self._tools, answer))
            message |= {"content": None, "tool_calls": [call]}
        if reasoning:
            message["reasoning_content"] = reasoning
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": self._finish_reason(end),
        }
        return {**self._envelope("chat.completion"), "choices": [choice], "usage": self._usage(end)}

    def first_frame(self) -> bytes:
        return self.content_frame({"role": "assistant", "content": "" if not self._tools else None})

    def call_frame(self) -> bytes:
        """Frame the head of the call of the caller's tool, before its arguments; "" without one."""
        if len(self._tools) != 1:
            return b""
        return self.content_frame({"tool_calls": [{"index": 0, **self._call(self._tools[0], "")}]})

    def text_frame(self, record: Record) -> bytes:
        """Frame a `text` record; an answer that is a call of one of several tools is one record."""
        text = str(record.content)
        if len(self._tools) > 1:
            call = self._call(*read_call(self._tools, text))
            self._calls += 1
            delta = {"tool_calls": [{"index": self._calls - 1, **call}]}
            return self.content_frame(delta, record.seq)
        if self._tools:
            piece = {"index": 0, "function": {"arguments": text}}
            return self.content_frame({"tool_calls": [piece]}, record.seq)
        return self.content_frame({"content": text}, record.seq)

    def content_frame(self, delta: Mapping[str, Any], seq: int | None = None) -> bytes:
        return frame(self._chunk(delta), seq=seq)

    def notice_frame(self, notice: Notice) -> bytes:
        """Frame a notice as a valid, empty chunk: clients break on anything else.

        Reasoning becomes a delta as DeepSeek and vLLM send it.
        """
        if notice.type == "reasoning":
            return self.content_frame({"reasoning_content": notice.fields["content"]})
        if notice.type not in STREAMED_NOTICES:
            return b""
        return frame({**self._chunk({}), "type": notice.type, **notice.fields}, event="progress")

    def wait_frame(self, record: Record) -> bytes:
        """Frame a call that waits for approval or input as a notice."""
        about = record.metadata
        fields: dict[str, Any] = {
            "call_id": about["call_id"],
            "path": about.get("path", [about["call_id"]]),
            "expires_at": about["expires_at"],
        }
        return self.notice_frame(Notice(record.event_type, fields | asked_fields(record)))

    def last_frames(self, end: Record, *, include_usage: bool) -> bytes:
        """Frame the end of a part's stream."""
        frames = b""
        if self.part.waiting:
            numbered = [{"index": n, **c} for n, c in enumerate(self._calls_waiting())]
            frames = self.content_frame({"tool_calls": numbered})
        frames += frame(self._chunk({}, self._finish_reason(end)))
        if include_usage:
            envelope = self._envelope("chat.completion.chunk")
            frames += frame({**envelope, "choices": [], "usage": self._usage(end)})
        return frames + DONE

    def _call(self, name: str, arguments: str) -> dict[str, Any]:
        """Return the answer as a call of the caller's tool; the id is the same in every read."""
        number = f"_{self._calls}" if self._calls else ""
        call_id = f"call_{self._entry.run_id[-_CALL_ID_CHARS:]}{number}"
        function = {"name": name, "arguments": arguments}
        return {"id": call_id, "type": "function", "function": function}

    def _finish_reason(self, end: Record) -> str:
        """Map a part's end to a finish reason (loop.md §2); `tool_calls` for a caller's tool."""
        if self.part.waiting:
            return "tool_calls"
        if end.event_type == "max_steps":
            return "length"
        reason = str(end.metadata["finish_reason"])
        return "tool_calls" if self._tools and reason == "stop" else reason

    def _chunk(self, delta: Mapping[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        return {**self._envelope("chat.completion.chunk"), "choices": [choice]}

    def _envelope(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.part.reply_id(self._entry.run_id),
            "object": kind,
            "created": self._created,
            "model": self._model,
        }

    def _calls_waiting(self) -> list[dict[str, Any]]:
        """Return the calls of the caller's tools that end the part."""
        calls = map(CallerCall, self.part.waiting)
        return [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
            for c in calls
        ]

    def _usage(self, end: Record) -> dict[str, int]:
        """Return the token counts of the part's own model calls, in OpenAI's fields."""
        usage = self.part.usage(end)
        prompt, completion = usage.prompt_tokens, usage.completion_tokens
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }
