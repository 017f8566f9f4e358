"""The agent under test for A2A's compatibility kit: ours, over a model made for the kit.

The kit's message ids say what should happen. No model sees ids, so the server notes the newest one.
`python a2a_agent.py` serves the agent at a free port, prints its URL, and runs until it is ended.
"""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from diptych.core.messages import JSONObject, Usage
from diptych.core.model_request import ModelRequest
from diptych.core.run_settings import RunSettings
from diptych.manifest.settings import AgentConfig, ChatConfig, ToolServerConfig
from diptych.models.connection import open_http_session
from diptych.policy.rules import Policy, Rule
from diptych.ports import Delta, Model, Reply
from diptych.runs.definition import AgentDefinition
from diptych.serve.hosted_agent import HostedAgent, InProcessBackends
from diptych.serve.process import ListenAddress, Sockets

TEXT_FILE = {"title": "output.txt", "contentMediaType": "text/plain"}
SCHEMAS = {
    "tck-artifact-data": {"type": "object", "required": ["key", "count"]},
    "tck-artifact-file-url": {"type": "string", "format": "uri", **TEXT_FILE},
    "tck-artifact-file": {"type": "string", **TEXT_FILE},
}
"""The output schemas of further agents, which get the messages whose ids start so."""
SAYS = {
    "tck-input-required": '{"tool": "publish"}',  # waits for approval
    "tck-artifact-text": "Generated text content",
    "tck-artifact-data": '{"key": "value", "count": 42}',
    "tck-artifact-file-url": '"https://example.com/output.txt"',
    "tck-artifact-file": '"The content of the file"',
    "tck-stream-001": "Stream hello from TCK",
    "tck-stream-003": "Stream task lifecycle",
    "tck-stream-ordering-001": "Ordered output",
}
OTHERWISE = "Hello from TCK"


class KitModel(Model):
    """Says what the newest message's id asks for."""

    def __init__(self) -> None:
        self.message_id = ""

    def _said(self) -> str:
        starts = (text for prefix, text in SAYS.items() if self.message_id.startswith(prefix))
        return next(starts, OTHERWISE)

    async def complete(self, request: ModelRequest) -> Reply:
        return Reply(self._said(), Usage(1, 1))

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta]:
        yield Delta(self._said(), usage=Usage(1, 1), finish_reason="stop")


def publish() -> str:
    """Publish the text."""
    return "published"


class Door:
    """Notes the id of each message, and leads those of `SCHEMAS` to the agents with these.

    The kit sends many messages under one id. A2A's ids are unique (4.1.4), and an agent may take
    a second message with the same id for the first one sent again (3.3.1), as ours does. So each
    gets a number here.
    """

    def __init__(self, model: KitModel, app: ASGIApp, typed: Mapping[str, ASGIApp]) -> None:
        self._model = model
        self._app = app
        self._typed = typed
        self._messages = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, is_whole = b"", False
        while scope["type"] == "http" and not is_whole:
            part = await receive()
            body, is_whole = body + part.get("body", b""), not part.get("more_body")
        if message_id := _message_id(body):
            self._model.message_id = message_id
            self._messages += 1
            body = body.replace(message_id.encode(), f"{message_id}-{self._messages}".encode())
        parts: list[Message] = [{"type": "http.request", "body": body}]

        async def replay() -> Message:
            return parts.pop() if parts else await receive()

        typed = (app for start, app in self._typed.items() if message_id.startswith(start))
        app = next(typed, self._app)
        headers = [h for h in scope.get("headers", ()) if h[0] != b"content-length"]
        length = (b"content-length", str(len(body)).encode())
        await app({**scope, "headers": [*headers, length]}, replay, send)


def _message_id(body: bytes) -> str:
    try:
        asked = json.loads(body)
        return str(asked.get("params", asked)["message"]["messageId"])
    except (ValueError, LookupError, AttributeError, TypeError):
        return ""


async def main() -> None:
    sockets = Sockets(ListenAddress(), 1)
    [url] = sockets.urls
    model = KitModel()
    backends = InProcessBackends(model, (ToolServerConfig("press", functions=(publish,)),))
    settings = RunSettings(answer_mode="direct")
    config = AgentConfig(
        "kit",
        description="Does what A2A's compatibility kit asks for.",
        public_url=url,
        chat=ChatConfig(webhook_hosts=("localhost",)),
        policy=Policy((Rule("tool", "publish", "ask"),)),
    )
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(open_http_session())

        async def app_of(name: str, schema: JSONObject | None) -> ASGIApp:
            typed = replace(settings, output_schema=schema)
            named = replace(config, name=name, definition=AgentDefinition(settings=typed))
            hosted = HostedAgent(named, http, url=url, in_process=backends)
            await stack.enter_async_context(hosted)
            await hosted.wait_until_tried()
            return hosted.app()

        typed = {start: await app_of(start, schema) for start, schema in SCHEMAS.items()}
        door = Door(model, await app_of("kit", None), typed)
        sys.stdout.write(f"{url}\n")
        sys.stdout.flush()
        server = uvicorn.Server(
            uvicorn.Config(door, log_level="warning", lifespan="off", ws="none")
        )
        await server.serve(list(sockets))


if __name__ == "__main__":
    asyncio.run(main())
