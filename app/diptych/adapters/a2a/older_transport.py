"""JSON-RPC to agents of A2A 0.3, as the SDK has it, but for what their frameworks do otherwise.

Loaded only for them.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from a2a.client import ClientCallContext
from a2a.compat.v0_3.jsonrpc_transport import CompatJsonRpcTransport
from a2a.types import SendMessageRequest, SendMessageResponse, StreamResponse

from diptych.adapters.a2a.pieces import joined
from diptych.adapters.a2a.transport import drop_time

_TEXT = "text/plain"
_MAX_MODES = 20  # of a card that a message names again


class OlderTransport(CompatJsonRpcTransport):
    """Sends to, and reads from, agents of 0.3, and those of 0.2 that are nearly the same."""

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
        async with aclosing(joined(events)) as whole:
            async for event in whole:
                yield event

    def _name_modes(self, request: SendMessageRequest) -> None:
        """Name what the agent says that it gives, since any form is taken.

        The field could not be left out in 0.2: fasta2a 0.6 (pydantic-ai 1) refuses what lacks it.
        """
        modes = self.agent_card.default_output_modes if self.agent_card else ()
        request.configuration.accepted_output_modes.extend(modes[:_MAX_MODES] or (_TEXT,))

    async def _send_request(
        self, json_data: dict[str, Any], context: ClientCallContext | None = None
    ) -> dict[str, Any]:
        response = await super()._send_request(json_data, context)
        if isinstance(response, dict):
            drop_time(response.get("result"))
        return response
