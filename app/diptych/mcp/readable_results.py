"""Mends results of calls that are not as MCP has them, so that the rest of them can be read.

The SDK refuses a whole result for one block that it does not know, when the tool has run already.
"""

import json
from typing import Any

import mcp_types
from pydantic import TypeAdapter, ValidationError

from diptych.core.messages import JSON
from diptych.core.text import one_line

NOTES = "diptych.dev/notes"
"""The key of a result's `_meta` for what of it could not be read."""

_BLOCK: TypeAdapter[mcp_types.ContentBlock] = TypeAdapter(mcp_types.ContentBlock)


def notes_of(result: mcp_types.CallToolResult) -> tuple[str, ...]:
    """Return what could not be read of a result, and what of it does not fit."""
    return tuple((result.meta or {}).get(NOTES, ()))


def add_note(result: mcp_types.CallToolResult, note: str) -> None:
    """Note something about a result for `notes_of`."""
    result.meta = {**(result.meta or {}), NOTES: (*notes_of(result), note)}


def mend_result(result: dict[str, Any]) -> None:
    """Make a call's result valid where it is not, in place."""
    notes: list[str] = []
    content, structured = result.get("content"), result.get("structuredContent")
    if content is None and "toolResult" in result:  # the form of 2024
        content = result["toolResult"]
        content = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    if content is not None or structured is not None:
        blocks = content if isinstance(content, list) else [content] if content else []
        result["content"] = [mended for block in blocks if (mended := _mended(block, notes))]
    if structured is not None and not isinstance(structured, dict) and "resultType" not in result:
        result["structuredContent"] = {"result": structured}  # older versions have objects only
    if result.get("isError", False) is None:
        del result["isError"]
    meta = result.get("_meta")
    result["_meta"] = {**(meta if isinstance(meta, dict) else {}), NOTES: notes}


def _mended(block: JSON, notes: list[str]) -> JSON:
    """Return a block that is valid: itself, or its text; None, with a note, if it has neither."""
    match block:
        case {"type": "text", "text": str(), **more} if not more:  # as nearly all are
            return block
        case {"type": _} if _is_valid(block):
            return block
        case str() as text:
            pass
        case {"text": str(text)} | {"resource": {"text": str(text)}}:
            pass
        case _:
            kind = block.get("type") if isinstance(block, dict) else None
            known = f"type {one_line(kind, 32)}" if isinstance(kind, str) else "no type"
            notes.append(f"a block of {known} cannot be read")
            return None
    return {"type": "text", "text": text}


def _is_valid(block: JSON) -> bool:
    try:
        _BLOCK.validate_python(block, by_name=False)
    except ValidationError:
        return False
    return True
