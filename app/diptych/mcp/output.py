"""Turns the result of an MCP tool call into a `CallOutput` or a `ToolError`.

The SDK rejects a whole result for one unknown block, although the tool has already run. So results
are repaired before the SDK parses them, with a note about the parts that could not be read.
"""

import base64
import binascii
import json
import re
from typing import Any

import mcp_types
from pydantic import TypeAdapter, ValidationError

from diptych.core.errors import CallErrorKind, ToolError
from diptych.core.messages import JSON, CallOutput
from diptych.core.text import one_line

MAX_BLOB_TEXT = 64 * 1024  # bytes of a resource that are shown as text
NOTES = "diptych.dev/notes"
"""The key in a result's `_meta` for notes about unreadable parts."""

_TEXTUAL = re.compile(r"text/|application/(?:[\w.-]+\+)?(?:json|xml|yaml)\b", re.ASCII)
_BLOCK: TypeAdapter[mcp_types.ContentBlock] = TypeAdapter(mcp_types.ContentBlock)


class NoAnswer(ToolError):
    """A sent call without a readable answer: the tool may have run.

    An ordinary error if the tool may safely be called again; otherwise the outcome is unknown.
    """

    def __init__(self, message: str, kind: CallErrorKind = "failed") -> None:
        super().__init__(kind, message)


def call_output(tool: str, result: mcp_types.CallToolResult) -> CallOutput:
    """Return the text for the model, and the structured value.

    A note lists the parts that could not be read, or do not match the tool's output schema. Raises
    `ToolError` `failed` if the tool reports an error, and `NoAnswer` if nothing is readable.
    """
    notes = list(notes_of(result))
    text, value = "\n".join(map(_text, result.content)), result.structured_content
    try:
        compact = _compact(value)
    except (TypeError, ValueError, RecursionError):
        compact, value = "", None
        notes.append("its structured content is not JSON")
    text = text or compact
    note = f"[Note: {'; '.join(notes)}.]" if notes else ""
    noted = "\n\n".join(filter(None, (text, note)))
    if result.result_type != "complete":
        what = f"the answer of {tool} has a type that MCP does not define"
        raise NoAnswer(f"{what}: {noted}" if noted else what)
    if result.is_error:
        raise ToolError("failed", noted or f"{tool} failed and gave no reason")
    if note and not text:
        raise NoAnswer(f"the answer of {tool} cannot be read: {'; '.join(notes)}")
    if note and value is None:
        value = {"result": text}  # as MCP wraps it: references insert the text without the note
    return CallOutput(noted, value)


def notes_of(result: mcp_types.CallToolResult) -> tuple[str, ...]:
    """Return the notes about a result."""
    return tuple((result.meta or {}).get(NOTES, ()))


def add_note(result: mcp_types.CallToolResult, note: str) -> None:
    """Add a note to a result."""
    result.meta = {**(result.meta or {}), NOTES: (*notes_of(result), note)}


def repair_result(result: dict[str, Any]) -> None:
    """Make the result of a call valid, in place."""
    notes: list[str] = []
    content, structured = result.get("content"), result.get("structuredContent")
    if content is None and "toolResult" in result:  # MCP of 2024
        content = result["toolResult"]
        content = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    if content is not None or structured is not None:
        blocks = content if isinstance(content, list) else [content] if content else []
        result["content"] = [valid for block in blocks if (valid := _repaired(block, notes))]
    if structured is not None and not isinstance(structured, dict) and "resultType" not in result:
        result["structuredContent"] = {"result": structured}  # older versions allow only objects
    if result.get("isError", False) is None:
        del result["isError"]
    meta = result.get("_meta")
    result["_meta"] = {**(meta if isinstance(meta, dict) else {}), NOTES: notes}


def _repaired(block: JSON, notes: list[str]) -> JSON:
    """Return the block if it is valid, else its text as a block; None, with a note, if neither."""
    match block:
        case {"type": "text", "text": str(), **more} if not more:  # the common case
            return block
        case {"type": _} if _is_valid(block):
            return block
        case str(text) | {"text": str(text)} | {"resource": {"text": str(text)}}:
            return {"type": "text", "text": text}
    kind = block.get("type") if isinstance(block, dict) else None
    known = f"type {one_line(kind, 32)}" if isinstance(kind, str) else "no type"
    notes.append(f"a content block of {known} cannot be read")
    return None


def _is_valid(block: JSON) -> bool:
    try:
        _BLOCK.validate_python(block, by_name=False)
    except ValidationError:
        return False
    return True


def _compact(value: object) -> str:
    if value is None:
        return ""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _text(block: mcp_types.ContentBlock) -> str:
    match block:
        case mcp_types.TextContent(text=text):
            return text
        case mcp_types.EmbeddedResource(resource=mcp_types.TextResourceContents(text=text)):
            return text
        case mcp_types.EmbeddedResource(resource=mcp_types.BlobResourceContents() as blob):
            kind = blob.mime_type or "application/octet-stream"
            return _blob_text(kind, blob.blob) or _described(kind, blob.blob, str(blob.uri))
        case mcp_types.ImageContent() | mcp_types.AudioContent():
            return _described(block.mime_type, block.data)
        case mcp_types.ResourceLink():
            named = ": ".join(filter(None, (block.title or block.name, block.description)))
            return f"[{block.mime_type or 'resource'}, {block.uri}, {named}]"
    return "[content of an unknown type]"


def _blob_text(mime_type: str, encoded: str) -> str | None:
    """Return the text of a small resource whose type and bytes are text; otherwise None."""
    if not _TEXTUAL.match(mime_type.lower()) or len(encoded) > MAX_BLOB_TEXT * 4 // 3:
        return None
    try:
        return base64.b64decode(encoded, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None


def _described(mime_type: str, encoded: str, *more: str) -> str:
    size = len(encoded) * 3 // 4 - encoded[-2:].count("=")
    return f"[{', '.join((mime_type, f'{size} bytes', *more))}]"
