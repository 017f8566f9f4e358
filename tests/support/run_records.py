"""Writes the records of a run as its log has them, for tests of what shows them."""

from collections.abc import Mapping
from itertools import count
from typing import Any

from diptych.core.codec import Record
from diptych.core.messages import JSON
from diptych.ports import Notice

PROGRESS = Notice("progress", {"step": 1, "max_steps": 5, "action": "tool_call", "target": "add"})


class Writer:
    """Writes a run's records, 10 ms apart."""

    def __init__(self) -> None:
        self._seq = count(1)

    def __call__(self, kind: str, content: JSON = None, /, **metadata: JSON) -> Record:
        seq = next(self._seq)
        return Record("run-1", "session-1", seq, kind, 100 + seq / 100, content, metadata)

    def call(self, call_id: str, *, step: int = 1, label: str | None = None) -> Record:
        about: Mapping[str, Any] = {"id": label} if label else {}
        content: JSON = {"tool": "add", "arguments": {"n": int(call_id)}}
        return self("tool_call", content, call_id=call_id, step=step, **about)

    def result(self, call_id: str, text: str, *, failed: bool = False) -> Record:
        kind = "tool_error" if failed else "tool_result"
        return self(kind, text, call_id=call_id, tool="add")

    def asked(self, call_id: str, agent: str) -> Record:
        content = {"agent": agent, "task": "Find it"}
        return self("delegation_request", content, call_id=call_id, step=1)

    def answered(self, call_id: str, agent: str, text: str) -> Record:
        return self("delegation_response", text, call_id=call_id, agent=agent)

    def completed(self, finish_reason: str = "stop") -> Record:
        usage = {"prompt_tokens": 7, "completion_tokens": 3}
        return self("completed", None, finish_reason=finish_reason, usage=usage)
