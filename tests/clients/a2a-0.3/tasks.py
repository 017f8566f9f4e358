"""An A2A 0.3 client in all its ways: prints what it got as JSON. First argument: base URL."""

import asyncio
import json
import sys
from typing import Any

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.client.client import Client
from a2a.client.errors import A2AClientError
from a2a.types import Message, Part, Role, Task, TaskIdParams, TaskQueryParams, TextPart
from a2a.types import TransportProtocol as Binding


def message(text: str, message_id: str, **more: Any) -> Message:
    parts = [Part(root=TextPart(text=text))]
    return Message(message_id=message_id, role=Role.user, parts=parts, **more)


def text_of(task: Task) -> str:
    parts = [part.root.text for artifact in task.artifacts or [] for part in artifact.parts]
    return "".join(parts)


async def conversation(client: Client, name: str) -> dict[str, Any]:
    """Ask, go on in the same context, read, and try what must fail."""
    events = [event async for event in client.send_message(message("hi", name))]
    task = events[-1][0]
    read = await client.get_task(TaskQueryParams(id=task.id))
    again = message("hi", f"{name}-again", context_id=task.context_id)
    more = [event async for event in client.send_message(again)][-1][0]
    refused = []
    for failing in (
        client.get_task(TaskQueryParams(id="never-was")),
        client.cancel_task(TaskIdParams(id=task.id)),
    ):
        try:
            await failing
        except A2AClientError as error:
            refused.append(type(error).__name__)
    return {
        "state": task.status.state.value,
        "answers": [text_of(each) for each in (task, read, more)],
        "is_one_context": more.context_id == task.context_id and more.id != task.id,
        "is_streamed": len(events) > 3,
        "refused": refused,
    }


async def main() -> None:
    found = {}
    async with httpx.AsyncClient(timeout=20) as http:
        base = sys.argv[1]
        card = await A2ACardResolver(http, f"{base}/a2a/v0.3").get_agent_card()
        same = await A2ACardResolver(http, base).get_agent_card("/.well-known/agent.json")
        assert card == same
        for binding in (Binding.jsonrpc, Binding.http_json):
            for streaming in (False, True):
                config = ClientConfig(
                    httpx_client=http,
                    streaming=streaming,
                    supported_transports=[binding],
                    use_client_preference=True,
                )
                name = f"{binding.value}{', streamed' if streaming else ''}"
                client = ClientFactory(config).create(card)
                found[name] = await conversation(client, name)
    print(json.dumps(found))


asyncio.run(main())
