"""Turns the result of an MCP tool call into a `CallOutput` or a `ToolError`."""

import json

import mcp_types

from diptych.errors import ToolError
from diptych.loop.messages import CallOutput


def call_output(tool: str, result: mcp_types.CallToolResult) -> CallOutput:
    """Give the text for the model, and the structured value.

    Raises `ToolError` `failed` if the tool reports an error, if its value is no JSON, or if the
    result is of a type that MCP does not have: what it means is not known then.
    """
    if result.result_type != "complete":
        raise ToolError("failed", f"the answer of {tool} is of a type that MCP does not have")
    text = "\n".join(_text(block) for block in result.content)
    if result.is_error:
        raise ToolError("failed", text or f"{tool} failed and gave no reason")
    value = result.structured_content
    if value is None:
        return CallOutput(text)
    try:
        compact = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ToolError("failed", f"the answer of {tool} does not fit: it is no JSON") from error
    return CallOutput(text or compact, value)


def _text(block: mcp_types.ContentBlock) -> str:
    match block:
        case mcp_types.TextContent(text=text):
            return text
        case mcp_types.EmbeddedResource(resource=mcp_types.TextResourceContents(text=text)):
            return text
        case mcp_types.EmbeddedResource(resource=mcp_types.BlobResourceContents() as blob):
            kind = blob.mime_type or "application/octet-stream"
            return _described(kind, blob.blob, str(blob.uri))
        case mcp_types.ImageContent() | mcp_types.AudioContent():
            return _described(block.mime_type, block.data)
        case mcp_types.ResourceLink():
            named = ": ".join(filter(None, (block.title or block.name, block.description)))
            return f"[{block.mime_type or 'resource'}, {block.uri}, {named}]"
    return "[content of an unknown type]"


def _described(mime_type: str, base64: str, *more: str) -> str:
    size = len(base64) * 3 // 4 - base64[-2:].count("=")
    return f"[{', '.join((mime_type, f'{size} bytes', *more))}]"
