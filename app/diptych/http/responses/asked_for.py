"""What a response says again of its request, as far as the run's record has it."""

from collections.abc import Mapping, Sequence
from typing import Any

from diptych.core.codec import Record
from diptych.ports.entries import RunEntry


def asked_for(first: Record | None, entry: RunEntry) -> dict[str, Any]:
    """Give the fields of a response that repeat its request; `first` is the run's first record."""
    about: Mapping[str, Any] = first.metadata if first else {}
    notes = notes_of(first)
    parameters: Mapping[str, Any] = about.get("parameters", {})
    forced = [{"type": "function", "name": name} for name in notes.get("tools", ())]
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
        "tools": [{**tool, "parameters": None, "strict": None} for tool in forced],
        "top_p": parameters.get("top_p"),
        "truncation": "auto",
    }


def notes_of(first: Record | None) -> Mapping[str, Any]:
    """Give the notes of a run (decision 216)."""
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
