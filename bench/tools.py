"""An instant MCP server with one tool, `echo`: `python -m bench.tools`.

It speaks just enough of MCP 2026-07-28 (stateless streamable HTTP, JSON replies) for the SDK's
client and for a plain POST. The SDK's own server would take longer than what is measured here.
"""

import json
from typing import Any

from bench.wire import Request, reply, run

_KEPT = {"resultType": "complete", "ttlMs": 60_000, "cacheScope": "public"}
_SCHEMA = {
    "type": "object",
    "properties": {"text": {"type": "string", "description": "What to say again"}},
    "required": ["text"],
}
_TOOL = {"name": "echo", "description": "Says a text again.", "inputSchema": _SCHEMA}
_RESULTS: dict[str, dict[str, Any]] = {
    "server/discover": {
        **_KEPT,
        "supportedVersions": ["2026-07-28"],
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "instant", "version": "1"},
    },
    "tools/list": {**_KEPT, "tools": [_TOOL]},
}


def respond(request: Request) -> None:
    asked = json.loads(request.body or b"{}")
    if "id" not in asked:
        request.write(reply(b"", b"202 Accepted"))
        return
    said: dict[str, Any] = {"jsonrpc": "2.0", "id": asked["id"]}
    if asked["method"] == "tools/call":
        text = asked["params"]["arguments"]["text"]
        content = [{"type": "text", "text": f"The echo says: {text}"}]
        said["result"] = {"resultType": "complete", "content": content, "isError": False}
    elif asked["method"] in _RESULTS:
        said["result"] = _RESULTS[asked["method"]]
    else:
        said["error"] = {"code": -32601, "message": "Method not found"}
    request.write(reply(json.dumps(said, separators=(",", ":")).encode()))


if __name__ == "__main__":
    run(respond)
