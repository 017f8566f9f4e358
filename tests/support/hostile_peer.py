"""An agent that means harm: it speaks A2A and our extension, and says what a test has it say."""

import json
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from diptych.a2a import extension

TASK = "t-1"


@dataclass
class HostilePeer:
    """Streams a task that begins, `says`, and is completed with `report`; `tree` is its run's.

    Or it `ends_as` something else, or sends what is not valid in place of its end.
    """

    says: Iterable[Any] = ()
    report: Any = None
    tree: Any = None
    ends_as: str = "COMPLETED"
    breaks_off_with: Any = None
    methods: list[str] = field(default_factory=list)

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/.well-known/agent-card.json", self._card),
                Route("/rpc", self._rpc, methods=["POST"]),
                Route("/rpc/v1/runs/{run}/tree", self._tree),
                Route("/v1/runs/{run}/tree", self._tree),
            ]
        )

    async def _card(self, request: Request) -> Response:
        interface = {
            "url": f"{str(request.base_url).rstrip('/')}/rpc",
            "protocolBinding": "JSONRPC",
            "protocolVersion": "1.0",
        }
        return JSONResponse(
            {
                "name": "hostile",
                "description": "Lies.",
                "version": "1",
                "supportedInterfaces": [interface],
                "capabilities": {
                    "streaming": True,
                    "extensions": [{"uri": extension.URI}],
                },
                "skills": [],
            }
        )

    async def _tree(self, _: Request) -> Response:
        if isinstance(self.tree, Response):
            return self.tree
        return JSONResponse(self.tree)

    async def _rpc(self, request: Request) -> Response:
        body = await request.json()
        self.methods.append(body["method"])
        if body["method"] == "SendStreamingMessage":
            return self._stream(body["id"])
        task = {"id": TASK, "contextId": "c", "status": {"state": "TASK_STATE_CANCELED"}}
        return JSONResponse({"jsonrpc": "2.0", "id": body["id"], "result": task})

    def _stream(self, request_id: str) -> Response:
        async def frames() -> AsyncIterator[str]:
            begun = {"id": TASK, "contextId": "c", "status": {"state": "TASK_STATE_SUBMITTED"}}
            yield _frame(request_id, {"task": begun})
            for each in self.says:
                yield _frame(request_id, status("WORKING", each))
            if self.breaks_off_with is not None:
                yield _frame(request_id, None, self.breaks_off_with)
            yield _frame(request_id, status(self.ends_as, self.report))

        return StreamingResponse(frames(), media_type="text/event-stream")


def status(state: str, about: Any = None) -> dict[str, Any]:
    """Give an update of the task's status, with metadata under our extension's URI."""
    update: dict[str, Any] = {"taskId": TASK, "status": {"state": f"TASK_STATE_{state}"}}
    if about is not None:
        update["metadata"] = {extension.URI: about}
    return {"statusUpdate": update}


def event(kind: str, seq: int, content: Any = "", **metadata: Any) -> dict[str, Any]:
    """Give an event of the task's own run."""
    about = {"type": kind, "seq": seq, "timestamp": 1.5, "path": []}
    return {"event": {**about, "content": content, "metadata": metadata}}


def _frame(request_id: str, result: Any, broken: Any = None) -> str:
    reply = {"jsonrpc": "2.0", "id": request_id, **(broken or {"result": result})}
    return f"data: {json.dumps(reply)}\n\n"
