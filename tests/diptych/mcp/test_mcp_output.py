"""What becomes of an MCP result, block by block."""

import base64
from typing import Any

import mcp_types
import pytest

from diptych.core.errors import ToolError
from diptych.core.messages import CallOutput
from diptych.mcp.output import NoAnswer, call_output


def result(*content: mcp_types.ContentBlock, **more: Any) -> mcp_types.CallToolResult:
    return mcp_types.CallToolResult(content=list(content), **more)


def text(said: str) -> mcp_types.TextContent:
    return mcp_types.TextContent(text=said)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param([text("a"), text("b")], "a\nb", id="texts are joined by newlines"),
        pytest.param(
            [text("see"), mcp_types.ImageContent(data="aGVsbG8=", mime_type="image/png")],
            "see\n[image/png, 5 bytes]",
            id="an image is described",
        ),
        pytest.param(
            [
                mcp_types.EmbeddedResource(
                    resource=mcp_types.TextResourceContents(uri="memo://1", text="inside")
                )
            ],
            "inside",
            id="an embedded text is read",
        ),
        pytest.param(
            [
                mcp_types.EmbeddedResource(
                    resource=mcp_types.BlobResourceContents(uri="memo://1", blob="aGk=")
                )
            ],
            "[application/octet-stream, 2 bytes, memo://1]",
            id="embedded bytes are described",
        ),
        pytest.param(  # as mcpServer.registerTool of the TypeScript SDK 1.32.2 lists files
            [
                mcp_types.ResourceLink(
                    name="f1",
                    title="Example File 1",
                    uri="file:///1.txt",
                    description="First example file",
                    mime_type="text/plain",
                )
            ],
            "[text/plain, file:///1.txt, Example File 1: First example file]",
            id="a link with a title is described",
        ),
    ],
)
def test_content_becomes_text(content: list[mcp_types.ContentBlock], expected: str) -> None:
    assert call_output("t", result(*content)) == CallOutput(expected)


def test_structured_content_is_the_value_and_the_text_if_there_is_none() -> None:
    value = {"a": [1, "ü"]}
    assert call_output("t", result(structured_content=value)) == CallOutput('{"a":[1,"ü"]}', value)
    assert call_output("t", result(text("3"), structured_content=value)) == CallOutput("3", value)


@pytest.mark.parametrize(
    ("content", "value", "told"),
    [
        ([text("no such file")], {"code": 2}, "no such file"),
        ([], {"error": {"code": "RATE"}}, '{"error":{"code":"RATE"}}'),
        ([text("")], "RATE", '"RATE"'),
        ([], None, "t failed and gave no reason"),
    ],
)
def test_an_error_of_the_tool_is_an_error_with_its_text(
    content: list[mcp_types.ContentBlock], value: object, told: str
) -> None:
    with pytest.raises(ToolError) as caught:
        call_output("t", result(*content, structured_content=value, is_error=True))
    assert (caught.value.kind, caught.value.message) == ("failed", told)
    assert not isinstance(caught.value, NoAnswer)


def test_a_value_that_is_no_json_is_left_out() -> None:
    nan = {"n": float("nan")}
    noted = CallOutput("three\n\n[Note: its structured content is not JSON.]", {"result": "three"})
    assert call_output("t", result(text("three"), structured_content=nan)) == noted
    with pytest.raises(NoAnswer, match="cannot be read: its structured content is not JSON"):
        call_output("t", result(structured_content=nan))


@pytest.mark.parametrize(
    ("mime_type", "content", "shown"),
    [
        pytest.param("Text/CSV; charset=utf-8", b"a,b", "a,b", id="with a charset"),
        pytest.param("application/problem+json", b"{}", "{}", id="a kind of JSON"),
        pytest.param("text/plain", b"\xff", "[text/plain, 1 bytes, memo://1]", id="not UTF-8"),
        pytest.param("text/plain", b"x" * 70_000, "[text/plain, 70000 bytes, memo://1]", id="long"),
        pytest.param("image/png", b"text", "[image/png, 4 bytes, memo://1]", id="an image"),
    ],
)
def test_the_bytes_of_a_small_text_are_text(mime_type: str, content: bytes, shown: str) -> None:
    blob = mcp_types.BlobResourceContents(
        uri="memo://1", mime_type=mime_type, blob=base64.b64encode(content).decode()
    )
    block = mcp_types.EmbeddedResource(resource=blob)
    assert call_output("t", result(block)) == CallOutput(shown)
