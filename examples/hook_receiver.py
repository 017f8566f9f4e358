"""A receiver of hooks: an HTTP server that denies payments over 100, and believes nobody else.

    HOOK_KEY=whsec_… python hook_receiver.py 8900

The manifest names it, with the same key as a Secret:

    hooks: [{at: beforeCall, url: http://hooks:8900/, signingKey: {secretKeyRef: …}}]

Each request is verified as https://www.standardwebhooks.com says, which has libraries for this.
"""

import base64
import hashlib
import hmac
import json
import os
import sys
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MOST = 100
TOLERANCE = 300  # seconds by which a timestamp may be off, either way


def is_genuine(key: str, headers: Mapping[str, str], body: bytes, now: float) -> bool:
    """Whether a request was signed with this key, a moment ago."""
    message_id, timestamp = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not (timestamp.isascii() and timestamp.isdigit() and abs(now - int(timestamp)) <= TOLERANCE):
        return False  # one that was caught earlier, and is sent again
    secret = base64.b64decode(key.removeprefix("whsec_"))
    signed = f"{message_id}.{timestamp}.".encode() + body
    expected = "v1," + base64.b64encode(hmac.digest(secret, signed, hashlib.sha256)).decode()
    given = headers.get("webhook-signature", "").split(" ")  # while keys change there are two
    return any(hmac.compare_digest(each.encode(), expected.encode()) for each in given)


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """Say what becomes of a call; nothing means: go on."""
    amount = question["call"].get("arguments", {}).get("amount", 0)
    return {"deny": "Payments over 100 need a person."} if amount > MOST else {}


class Receiver(BaseHTTPRequestHandler):
    """Answers one question of an agent."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if not is_genuine(os.environ["HOOK_KEY"], self.headers, body, time.time()):
            self.send_error(401)  # the agent denies the call then, and names this hook
            return
        reply = json.dumps(answer(json.loads(body))).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, *_: object) -> None:
        """Say nothing of requests."""


if __name__ == "__main__":
    ThreadingHTTPServer(("", int(sys.argv[1])), Receiver).serve_forever()
