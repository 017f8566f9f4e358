"""JSON-RPC to A2A 0.3 agents: the SDK's, adapted to deviations of real frameworks.

Loaded only when needed.
"""

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, TypeAlias

from a2a.client import ClientCallContext
from a2a.client.transports.http_helpers import get_http_args, send_http_stream_request
from a2a.compat.v0_3 import conversions, types
from a2a.compat.v0_3.extension_headers import add_legacy_extension_header
from a2a.compat.v0_3.jsonrpc_transport import CompatJsonRpcTransport
from a2a.types import (
    Artifact,
    SendMessageRequest,
    SendMessageResponse,
    StreamResponse,
    TaskArtifactUpdateEvent,
)
from a2a.utils.constants import PROTOCOL_VERSION_0_3, VERSION_HEADER

from diptych.a2a.transport import drop_time

_TEXT = "text/plain"
_MAX_MODES = 20  # of a card that a message names again
_Event: TypeAlias = (
    types.Task | types.Message | types.TaskStatusUpdateEvent | types.TaskArtifactUpdateEvent
)
_MODELS: dict[str, type[_Event]] = {
    "task": types.Task,
    "message": types.Message,
    "status-update": types.TaskStatusUpdateEvent,
    "artifact-update": types.TaskArtifactUpdateEvent,
}


class OlderTransport(CompatJsonRpcTransport):
    """Transport for A2A 0.3 agents, and for 0.2, which is nearly the same."""

    async def send_message(
        self, request: SendMessageRequest, *, context: ClientCallContext | None = None
    ) -> SendMessageResponse:
        self._name_modes(request)
        response: SendMessageResponse = await super().send_message(request, context=context)
        return response

    async def send_message_streaming(
        self, request: SendMessageRequest, *, context: ClientCallContext | None = None
    ) -> AsyncGenerator[StreamResponse]:
        self._name_modes(request)
        events = super().send_message_streaming(request, context=context)
        async with aclosing(_joined(events)) as whole:
            async for event in whole:
                yield event

    def _name_modes(self, request: SendMessageRequest) -> None:
        """Send the card's output modes: fasta2a 0.6 (A2A 0.2) refuses requests without them."""
        modes = self.agent_card.default_output_modes if self.agent_card else ()
        request.configuration.accepted_output_modes.extend(modes[:_MAX_MODES] or (_TEXT,))

    async def _send_request(
        self, json_data: dict[str, Any], context: ClientCallContext | None = None
    ) -> dict[str, Any]:
        response = await super()._send_request(json_data, context)
        if isinstance(response, dict):
            drop_time(response.get("result"))
        return response

    async def _send_stream_request(
        self, json_data: dict[str, Any], context: ClientCallContext | None = None
    ) -> AsyncGenerator[StreamResponse]:
        """Do as the SDK does, but drop timestamps, for which its stream has no hook."""
        options = get_http_args(context)
        headers = options.setdefault("headers", {})
        headers[VERSION_HEADER.lower()] = PROTOCOL_VERSION_0_3
        add_legacy_extension_header(headers)
        frames = send_http_stream_request(
            self.httpx_client, "POST", self.url, self._handle_http_error, json=json_data, **options
        )
        async with aclosing(frames) as received:
            async for frame in received:
                reply = json.loads(frame)
                if "error" in reply:
                    raise self._create_jsonrpc_error(reply["error"])
                result = reply.get("result")
                if isinstance(result, dict) and (model := _MODELS.get(_kind_of(result))):
                    drop_time(result)
                    event = types.SendStreamingMessageSuccessResponse(
                        result=model.model_validate(result)
                    )
                    yield conversions.to_core_stream_response(event)


def _kind_of(result: dict[str, Any]) -> str:
    """Return an event's kind, inferred from its fields if it has no `kind`."""
    if named := result.get("kind"):
        return str(named)
    if "taskId" in result and "final" in result:
        return "status-update"
    if "messageId" in result:
        return "message"
    return "task" if "id" in result else ""


async def _joined(events: AsyncGenerator[StreamResponse]) -> AsyncGenerator[StreamResponse]:
    """Yield events, turning messages that follow a task into pieces of an artifact.

    Agno 3.1 sends a task, then each piece of text as a message, then the task with the whole
    answer; the SDK takes a message for the whole answer.
    """
    task_id, has_pieces = "", False
    async with aclosing(events):
        async for event in events:
            if not (task_id and event.HasField("message")):
                named = event.task.id or event.status_update.task_id
                task_id = task_id or named or event.artifact_update.task_id
                yield event
                continue
            artifact = Artifact(artifact_id="messages", parts=event.message.parts)
            piece = TaskArtifactUpdateEvent(task_id=task_id, artifact=artifact, append=has_pieces)
            has_pieces = True
            yield StreamResponse(artifact_update=piece)
