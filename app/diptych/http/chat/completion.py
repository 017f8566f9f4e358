"""A run in OpenAI's JSON: as a chat completion, and as the chunks of a streamed one.

Not here: reading the run (`http.chat.reader`).
"""

from collections.abc import Mapping
from typing import Any

import orjson

from diptych.loop.codec import Record
from diptych.net.sse import frame
from diptych.ports import Notice
from diptych.ports.entries import RunEntry

DONE = b"data: [DONE]\n\n"
STREAMED_NOTICES = frozenset({"progress", "tool_progress", "delegation_progress", "format_warning"})


class CompletionFormat:
    """Writes what one run of an agent gives; `model` is the agent's name."""

    def __init__(self, entry: RunEntry, model: str) -> None:
        self._entry = entry
        self._model = model
        self._created = int(entry.created)
        self._before_text, self._after_text = self._text_frame_parts()

    def completion(self, answer: str, end: Record) -> dict[str, Any]:
        """Write the whole completion of a run; `end` is its terminal record."""
        message = {"role": "assistant", "content": answer, "refusal": None}
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": _finish_reason(end),
        }
        return {**self._envelope("chat.completion"), "choices": [choice], "usage": _usage(end)}

    def first_frame(self) -> bytes:
        return self.content_frame({"role": "assistant", "content": ""})

    def text_frame(self, record: Record) -> bytes:
        """Frame a `text` record. Only the text differs from one chunk to the next."""
        text = orjson.dumps(str(record.content))
        return b"id: %d\ndata: %b%b%b" % (record.seq, self._before_text, text, self._after_text)

    def content_frame(self, delta: Mapping[str, Any], seq: int | None = None) -> bytes:
        return frame(self._chunk(delta), seq=seq)

    def notice_frame(self, notice: Notice) -> bytes:
        """Frame a notice as a valid and empty chunk, because clients break on anything else."""
        if notice.type not in STREAMED_NOTICES:
            return b""
        return frame({**self._chunk({}), "type": notice.type, **notice.fields}, event="progress")

    def last_frames(self, end: Record, *, include_usage: bool) -> bytes:
        """Frame what ends the stream of a run that gave an answer."""
        frames = frame(self._chunk({}, _finish_reason(end)))
        if include_usage:
            envelope = self._envelope("chat.completion.chunk")
            frames += frame({**envelope, "choices": [], "usage": _usage(end)})
        return frames + DONE

    def _text_frame_parts(self) -> tuple[bytes, bytes]:
        """Give what stands before and after the text of a chunk."""
        mark = "\x00"
        chunk = orjson.dumps(self._chunk({"content": mark}))
        before, _, after = chunk.partition(orjson.dumps(mark))
        return before, after + b"\n\n"

    def _chunk(self, delta: Mapping[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        return {**self._envelope("chat.completion.chunk"), "choices": [choice]}

    def _envelope(self, kind: str) -> dict[str, Any]:
        return {
            "id": self._entry.run_id,
            "object": kind,
            "created": self._created,
            "model": self._model,
        }


def failure(end: Record) -> tuple[str, str] | None:
    """Give code and message of a run that failed or was aborted; None if it gave an answer."""
    match end.event_type:
        case "failed":
            return str(end.metadata["code"]), str(end.content)
        case "aborted":
            return "aborted", f"the run was aborted: {end.content}"
        case _:
            return None


def _finish_reason(end: Record) -> str:
    """Map the end of a run as loop.md §2 says."""
    return "length" if end.event_type == "max_steps" else str(end.metadata["finish_reason"])


def _usage(end: Record) -> dict[str, int]:
    """Give the tokens of all the run's own model calls, as OpenAI names them."""
    usage: Any = end.metadata["usage"]
    prompt, completion = usage["prompt_tokens"], usage["completion_tokens"]
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
