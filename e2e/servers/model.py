"""An OpenAI-compatible model, run inside a pod: it answers with the key that it was asked with.

Asked for its instructions, it answers with those.
"""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Endpoint(BaseHTTPRequestHandler):
    """`POST …/chat/completions`, streamed or not; `GET …/models`."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._send("application/json", json.dumps({"object": "list", "data": [{"id": "stub"}]}))

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        key = self.headers.get("authorization", "none").removeprefix("Bearer ")
        if asked.get("stream"):
            chunks = [{"role": "assistant", "content": _answer(asked["messages"], key)}, {}]
            reasons = [None, "stop"]
            frames = [
                json.dumps(_reply("delta", delta, reason))
                for delta, reason in zip(chunks, reasons, strict=True)
            ]
            body = "".join(f"data: {frame}\n\n" for frame in [*frames, "[DONE]"])
            self._send("text/event-stream", body)
        else:
            message = {"role": "assistant", "content": "{}"}
            self._send("application/json", json.dumps(_reply("message", message, "stop")))

    def _send(self, media_type: str, body: str) -> None:
        data = body.encode()
        self.send_response(200)
        self.send_header("content-type", media_type)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _answer(messages: list[dict[str, Any]], key: str) -> str:
    if any("your instructions?" in str(message["content"]) for message in messages):
        return "\n".join(str(one["content"]) for one in messages if one["role"] != "user")
    return f"The key is {key}."


def _reply(part: str, content: dict[str, str], reason: str | None) -> dict[str, object]:
    return {
        "id": "reply",
        "object": "chat.completion" + (".chunk" if part == "delta" else ""),
        "created": 0,
        "model": "stub",
        "choices": [{"index": 0, part: content, "finish_reason": reason}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }


ThreadingHTTPServer(("", 8000), Endpoint).serve_forever()
