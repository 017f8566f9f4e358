"""Models that call natively, and one whose endpoint takes no tools."""

import json
from typing import Any

from support.doubles import ListeningModel

from diptych.core.errors import ModelError
from diptych.core.messages import NativeCall
from diptych.core.model_request import ModelRequest
from diptych.ports import Reply


def native(name: str, call_id: str = "a", **arguments: Any) -> NativeCall:
    """A native call, with its arguments as JSON text."""
    return NativeCall(call_id, name, json.dumps(arguments))


class NativeModel(ListeningModel):
    """Plays a script whose entries are tuples of native calls, or as any script has them."""

    def __init__(self, *replies: Any) -> None:
        super().__init__(*("" if isinstance(r, tuple) else r for r in replies))
        self.replies = replies
        self.asked: list[ModelRequest] = []

    async def complete(self, request: ModelRequest) -> Reply:
        self.asked.append(request)
        reply = await super().complete(request)
        said = self.replies[request.index]
        is_native = isinstance(said, tuple)
        return Reply("", reply.usage, "tool_calls", calls=said) if is_native else reply


class RefusingModel(NativeModel):
    """Its endpoint takes no tools, which it learns by the first refusal."""

    takes_tools: bool | None = None

    async def complete(self, request: ModelRequest) -> Reply:
        if request.tools:
            self.takes_tools = False
            raise ModelError("tools_refused", "The model endpoint does not support tools.")
        return await super().complete(request)
