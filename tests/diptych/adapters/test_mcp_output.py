"""What becomes of an MCP result, block by block."""

from typing import Any

import mcp_types
import pytest

from diptych.adapters.mcp.output import call_output
from diptych.errors import ToolError
from diptych.loop.messages import CallOutput


def result(*content: mcp_types.ContentBlock, **more: Any) -> mcp_types.CallToolResult:
    return mcp_types.CallToolResult(content=list(content), **more)


def text(said: str) -> mcp_types.TextContent:
    return mcp_types.TextContent(text=said)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param([text("a"), text("b")], "a\nb", id="texts are joined by newlines"),
        pytest.param([], "", id="nothing is an empty text"),
        pytest.param(
            [text("see"), mcp_types.ImageContent(data="aGVsbG8=", mime_type="image/png")],
            "see\n[image/png, 5 bytes]",
            id="an image is described",
        ),
        pytest.param(
            [mcp_types.AudioContent(data="aGVsbG8h", mime_type="audio/wav")],
            "[audio/wav, 6 bytes]",
            id="so is sound",
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
        pytest.param(
            [mcp_types.ResourceLink(name="report", uri="file:///report.pdf")],
            "[resource, file:///report.pdf, report]",
            id="a link is named",
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


def test_structured_content_alone_is_its_text_too() -> None:
    assert call_output("t", result(structured_content={"a": [1, "ü"]})) == CallOutput(
        '{"a":[1,"ü"]}', {"a": [1, "ü"]}
    )


def test_structured_content_beside_a_text_is_the_value() -> None:
    assert call_output("t", result(text("three"), structured_content={"n": 3})) == CallOutput(
        "three", {"n": 3}
    )


def test_an_error_of_the_tool_is_an_error_with_its_text() -> None:
    with pytest.raises(ToolError, match="no such file") as caught:
        call_output("t", result(text("no such file"), is_error=True))
    assert caught.value.kind == "failed"


def test_a_value_that_is_no_json_is_an_error() -> None:
    with pytest.raises(ToolError, match="does not fit") as caught:
        call_output("t", result(structured_content={"n": float("nan")}))
    assert caught.value.kind == "failed"
