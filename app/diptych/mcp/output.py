"""Turns the result of an MCP tool call into a `CallOutput` or a `ToolError`."""

import base64
import binascii
import json
import re

import mcp_types

from diptych.core.errors import CallErrorKind, ToolError
from diptych.core.messages import CallOutput
from diptych.mcp.readable_results import notes_of

MAX_BLOB_TEXT = 64 * 1024  # bytes of a resource that are shown as text
_TEXTUAL = re.compile(r"text/|application/(?:[\w.-]+\+)?(?:json|xml|yaml)\b", re.ASCII)


class NoAnswer(ToolError):
    """A call that was sent, and has no answer that can be read: the tool may have run.

    It is an ordinary error of a tool that may be called again; of any other the outcome is unknown.
    """

    def __init__(self, message: str, kind: CallErrorKind = "failed") -> None:
        super().__init__(kind, message)


def call_output(tool: str, result: mcp_types.CallToolResult) -> CallOutput:
    """Return the text for the model, and the structured value.

    A note says what of the result could not be read, or does not fit the tool's output schema.
    Raises `ToolError` `failed` if the tool reports an error, and `NoAnswer` if nothing can be read.
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
        what = f"the answer of {tool} is of a type that MCP does not have"
        raise NoAnswer(f"{what}: {noted}" if noted else what)
    if result.is_error:
        raise ToolError("failed", noted or f"{tool} failed and gave no reason")
    if note and not text:
        raise NoAnswer(f"the answer of {tool} cannot be read: {'; '.join(notes)}")
    if note and value is None:
        value = {"result": text}  # MCP's wrapper: references insert the text without the note
    return CallOutput(noted, value)


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
    """Return the text of a small resource that is text by its type and its bytes."""
    if not _TEXTUAL.match(mime_type.lower()) or len(encoded) > MAX_BLOB_TEXT * 4 // 3:
        return None
    try:
        return base64.b64decode(encoded, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None


def _described(mime_type: str, encoded: str, *more: str) -> str:
    size = len(encoded) * 3 // 4 - encoded[-2:].count("=")
    return f"[{', '.join((mime_type, f'{size} bytes', *more))}]"
