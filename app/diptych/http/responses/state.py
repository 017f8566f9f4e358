"""A run as a Responses API object and its events.

Both are derived from the log alone. Events are numbered from 0 in log order, so `sequence_number`
is the same in every replay, on every replica, and after a takeover (decision 214). Void text stays
in the stream as an item that ends `incomplete` and is not in the response's `output`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from diptych.core.codec import Record
from diptych.http.answer_form import read_call
from diptych.http.caller_calls import CallerCall, Part
from diptych.http.run_reader import failure
from diptych.ports.entries import RunEntry

Event = dict[str, Any]
_CALL_ID_CHARS = 32
_STATUS = {
    "queued": "queued",
    "completed": "completed",
    "max_steps": "incomplete",
    "failed": "failed",
    "aborted": "cancelled",
}
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


class ResponseState:
    """A response built from the records fed so far; `model` is the agent's name.

    It tells one `part` of a run; `first` is the run's first record, if an earlier part has it.
    """

    def __init__(
        self, model: str, entry: RunEntry, part: Part, first: Record | None = None
    ) -> None:
        self.part = part
        self.last_number = -1  # of the newest event
        self.last_seq = 0  # of the newest record that gave an event
        self.is_over = False
        self.void_ids: list[str] = []  # of items whose text became void
        self.entry = entry
        self._model = model
        self._status = _STATUS.get(entry.status, "in_progress")
        self._first = first
        self._began: Record | None = None  # the part's first record
        self._end: Record | None = None
        self._tools: Sequence[str] = ()  # of the caller, of one of which the answer is a call
        self._output: list[Event] = []
        self._item: Event | None = None  # the one that is streamed
        self._text: list[str] = []  # of it
        self._items = 0  # that were streamed, the void ones too
        self._events: list[Event] = []

    def feed(self, record: Record) -> list[Event]:
        """Apply the next record; return its events."""
        self._events = []
        if record.seq <= self.part.after:
            return []
        self.part.feed(record)
        if self._began is None:
            self._begin(record)
        elif self._status == "queued":
            self._status = "in_progress"
            self._tell("response.in_progress", response=self.response())
        match record.event_type:
            case "text" if not self._is_choice:
                self._add_text(str(record.content))
            case "agent_response":
                self._end_item(record)
            case "answer_reset" if self._item:
                self.void_ids.append(self._tell_done("incomplete")["id"])
            case "completed" | "max_steps" | "failed" | "aborted":
                self._finish(record)
        if self.part.waiting and record.seq == self.part.seq:  # a reader may be ahead with the part
            self._end_with_calls(record)
        if self._events:
            self.last_seq = record.seq
        return self._events

    def response(self, reasoning: str = "") -> dict[str, Any]:
        """Return the current response; `reasoning` is live text that is not in the log."""
        return {
            "id": self.id,
            "object": "response",
            "created_at": int(self._began.timestamp if self._began else self.entry.created),
            "status": self._status,
            "error": self._error(),
            "incomplete_details": self._incomplete_details(),
            "completed_at": self._completed_at(),
            "model": self._model,
            "output": [*self._reasoning_items(reasoning), *self._output],
            "usage": self._usage(),
            **_asked_for(self._first, self.entry),
            **self._continued(),
        }

    def live_reasoning(self, text: str) -> Event:
        """Return a piece of reasoning as an event.

        It is live only and repeats the newest recorded event's number, after which a resumed stream
        continues.
        """
        return {
            "type": "response.reasoning_text.delta",
            "sequence_number": max(0, self.last_number),
            "item_id": f"rs_{self.id}",
            "output_index": self._items,
            "content_index": 0,
            "delta": text,
        }

    def _begin(self, record: Record) -> None:
        self._began = record
        if self._first is None:
            self._first, self._status = record, "queued"
        else:
            self._status = "in_progress"
        self._tools = _notes_of(self._first).get("tools", ())
        self._tell("response.created", response=self.response())

    def _add_text(self, text: str) -> None:
        if self._item is None:
            if self._tools:
                self._open_call(self._tools[0])
            else:
                self._open_message()
        self._text.append(text)
        if self._tools:
            self._tell_in_item("response.function_call_arguments.delta", delta=text)
        else:
            self._tell_in_part("response.output_text.delta", delta=text, logprobs=[])

    def _open_message(self) -> None:
        content: list[Event] = []
        item = {"type": "message", "status": "in_progress", "role": "assistant", "content": content}
        self._open("msg", item)
        self._tell_in_part("response.content_part.added", part=_part(""))

    def _open_call(self, name: str) -> None:
        """Start the item of a caller's tool call; its id is the same in every read."""
        number = f"_{self._items}" if self._items else ""
        self._open_item(f"call_{self.entry.run_id[-_CALL_ID_CHARS:]}{number}", name)

    def _open_item(self, call_id: str, name: str) -> None:
        call = {"type": "function_call", "status": "in_progress", "call_id": call_id}
        self._open("fc", {**call, "name": name, "arguments": ""})

    def _open(self, prefix: str, item: Event) -> None:
        self._item = {"id": f"{prefix}_{self.id}_{self._items}", **item}
        self._tell("response.output_item.added", output_index=self._items, item=self._item)

    def _end_item(self, record: Record) -> None:
        """End the answer's item, adding any text that was not streamed."""
        answer = str(record.content)
        if self._is_choice:
            name, answer = read_call(self._tools, answer)
            self._open_call(name)
            self._add_text(answer)
        elif self._item is None:
            self._add_text(answer)
        self._tell_text_done()
        is_cut = str(record.metadata["finish_reason"]) in _INCOMPLETE
        self._output.append(self._tell_done("incomplete" if is_cut else "completed"))

    def _tell_text_done(self) -> None:
        text = "".join(self._text)
        assert self._item
        if self._item["type"] == "function_call":
            name = self._item["name"]
            self._tell_in_item("response.function_call_arguments.done", name=name, arguments=text)
            return
        self._tell_in_part("response.output_text.done", text=text, logprobs=[])
        self._tell_in_part("response.content_part.done", part=_part(text))

    def _tell_done(self, status: str) -> Event:
        """Emit the item's end, and return the item."""
        assert self._item
        text = "".join(self._text)
        is_call = self._item["type"] == "function_call"
        content = {"arguments": text} if is_call else {"content": [_part(text)]}
        done = {**self._item, "status": status, **content}
        self._tell("response.output_item.done", output_index=self._items, item=done)
        self._item, self._text = None, []
        self._items += 1
        return done

    def _end_with_calls(self, end: Record) -> None:
        """End the response with the calls whose results the caller owes."""
        self._end, self.is_over = end, True
        if self._item:
            self._output.append(self._tell_done("incomplete"))
        for call in map(CallerCall, self.part.waiting):
            self._open_item(call.id, call.name)
            self._text.append(call.arguments)
            self._tell_in_item("response.function_call_arguments.delta", delta=call.arguments)
            self._tell_text_done()
            self._output.append(self._tell_done("completed"))
        self._status = "completed"
        self._tell("response.completed", response=self.response())

    def _finish(self, end: Record) -> None:
        self._end, self.is_over = end, True
        if self._item:
            self._output.append(self._tell_done("incomplete"))
        if end.event_type == "max_steps":
            self._tools = ()  # the text of `max_steps` is no call
            self._add_text(str(end.content))
            self._tell_text_done()
            self._output.append(self._tell_done("incomplete"))
        self._status = _STATUS[end.event_type]
        if self._incomplete_details():
            self._status = "incomplete"
        kind = "failed" if self._status == "cancelled" else self._status
        self._tell(f"response.{kind}", response=self.response())

    def _tell(self, kind: str, **fields: Any) -> None:  # noqa: ANN401 - JSON
        self.last_number += 1
        self._events.append({"type": kind, "sequence_number": self.last_number, **fields})

    def _tell_in_item(self, kind: str, **fields: Any) -> None:  # noqa: ANN401 - JSON
        assert self._item
        self._tell(kind, item_id=self._item["id"], output_index=self._items, **fields)

    def _tell_in_part(self, kind: str, **fields: Any) -> None:  # noqa: ANN401 - JSON
        self._tell_in_item(kind, content_index=0, **fields)

    # The response

    @property
    def id(self) -> str:
        return self.part.reply_id(self.entry.run_id)

    def _continued(self) -> dict[str, str]:
        """Return the response that a later part of a run continues."""
        before = self.part.id_before(self.entry.run_id)
        return {"previous_response_id": before} if before else {}

    def _usage(self) -> dict[str, Any] | None:
        """Return the token counts of the part's own model calls; details are unknown."""
        if self._end is None or not (self.part.waiting or self._end.metadata.get("usage")):
            return None
        usage = self.part.usage(self._end)
        return {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }

    @property
    def _is_choice(self) -> bool:
        """Whether the answer calls one of several tools; only the whole text says which."""
        return len(self._tools) > 1

    def _reasoning_items(self, text: str) -> list[Event]:
        if not text:
            return []
        content = [{"type": "reasoning_text", "text": text}]
        item = {"id": f"rs_{self.id}", "type": "reasoning", "summary": []}
        return [{**item, "content": content, "status": "completed"}]

    def _error(self) -> dict[str, str] | None:
        if self._end is None or (failed := failure(self._end)) is None:
            return None
        code, message = failed
        return {"code": code, "message": message}

    def _incomplete_details(self) -> dict[str, str] | None:
        """Return why a response is incomplete; a run at `max_steps` counts as cut, as in a chat."""
        if self._end is None:
            return None
        default = "length" if self._end.event_type == "max_steps" else ""
        reason = _INCOMPLETE.get(str(self._end.metadata.get("finish_reason", default)))
        return {"reason": reason} if reason else None

    def _completed_at(self) -> int | None:
        return int(self._end.timestamp) if self._end and self._status == "completed" else None


def fed(state: ResponseState, records: Sequence[Record]) -> ResponseState:
    """Return a state fed with a run's records, up to the end of its part."""
    for record in records:
        state.feed(record)
        if state.is_over:
            break
    return state


def _part(text: str) -> Event:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


# What a response repeats of its request


def _asked_for(first: Record | None, entry: RunEntry) -> dict[str, Any]:
    """Return the response fields that echo the request; `first` is the first record."""
    about: Mapping[str, Any] = first.metadata if first else {}
    notes = _notes_of(first)
    parameters: Mapping[str, Any] = about.get("parameters", {})
    forced = [{"type": "function", "name": name} for name in notes.get("tools", ())]
    offered: Any = about.get("tools", ())
    return {
        "background": notes.get("background", False),
        "conversation": {"id": entry.session_id},
        "instructions": about.get("system"),
        "max_output_tokens": parameters.get("max_tokens"),
        "metadata": notes.get("metadata", {}),
        "parallel_tool_calls": True,
        "previous_response_id": notes.get("previous_response_id"),
        "reasoning": {"effort": parameters.get("reasoning_effort"), "summary": None},
        "store": True,
        "temperature": parameters.get("temperature"),
        "text": {"format": _text_format(about.get("output_schema"), forced)},
        "tool_choice": _tool_choice(forced),
        "tools": [
            *({**tool, "parameters": None, "strict": None} for tool in forced),
            *map(_function, offered),
        ],
        "top_p": parameters.get("top_p"),
        "truncation": "auto",
    }


def _function(tool: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "function",
        "name": tool["name"],
        "description": tool["description"],
        "parameters": tool["input_schema"],
        "strict": None,
    }


def _notes_of(first: Record | None) -> Mapping[str, Any]:
    """Return the notes of a run (decision 216)."""
    notes: Any = first.metadata.get("notes", {}) if first else {}
    return notes if isinstance(notes, Mapping) else {}


def _text_format(schema: Mapping[str, Any] | None, forced: Sequence[Any]) -> dict[str, Any]:
    if schema is None or forced:
        return {"type": "text"}
    if not schema:
        return {"type": "json_object"}
    return {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}


def _tool_choice(forced: Sequence[dict[str, Any]]) -> str | dict[str, Any]:
    if len(forced) == 1:
        return forced[0]
    return "required" if forced else "auto"
