"""The guard that counts what each request holds: its body, what is read for it, and its answer.

It refuses with 503, or with 429 for one subject, before anything is read, and gives everything
back when the request has ended. An answer is written in slices, so that the server holds little of
one that is taken slowly.
"""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from diptych.access.caller import current_caller
from diptych.core.errors import Overloaded, SubjectOverloaded
from diptych.http.guards import MAX_BODY, Refusal, refusal_response, refuse
from diptych.net.memory_budget import MemoryBudget, Share, json_size, set_share

SLICE = 2**15  # bytes of an answer that are given to the server at once
_WIDE = b"\\u"  # may stand for a character that makes its whole text wide


class _NoRoom(Exception):
    """There is no room for the next part of a body; no handler of the application knows this."""

    def __init__(self, cause: Overloaded, *, has_ended: bool) -> None:
        super().__init__()
        self.cause = cause
        self.has_ended = has_ended


class MemoryGuard:
    """ASGI middleware: each request has a share of the budget, which `current_share` finds."""

    def __init__(self, app: ASGIApp, memory_budget: MemoryBudget) -> None:
        self._app = app
        self._memory_budget = memory_budget

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        subject = current_caller().subject
        share = self._memory_budget.share(str(subject) if subject else "")
        set_share(share)
        try:
            if declared := _declared_length(scope):
                share.admit(declared)
            await self._app(
                scope, _counted(receive, share), _Answer(scope, share, receive, send).send
            )
        except _NoRoom as error:
            await refuse(_refusal(error.cause), scope, receive, send, has_ended=error.has_ended)
        except Overloaded as error:
            await refuse(_refusal(error), scope, receive, send)
        finally:
            share.release()


def _counted(receive: Receive, share: Share) -> Receive:
    async def receive_counted() -> Message:
        message = await receive()
        if body := message.get("body"):
            wide = 0 if body.isascii() and _WIDE not in body else 3 * len(body)
            try:
                share.admit(json_size(body) + wide)
            except Overloaded as error:
                has_ended = not message.get("more_body", False)
                raise _NoRoom(error, has_ended=has_ended) from error
        return message

    return receive_counted


class _Answer:
    """Sends one answer: counted if its length is known, and in slices."""

    def __init__(self, scope: Scope, share: Share, receive: Receive, send: Send) -> None:
        self._scope = scope
        self._share = share
        self._receive = receive
        self._send = send
        self._is_replaced = False

    async def send(self, message: Message) -> None:
        if self._is_replaced:
            return
        if message["type"] == "http.response.start":
            await self._start(message)
            return
        body, more = message.get("body", b""), message.get("more_body", False)
        if len(body) <= SLICE:
            await self._send(message)
            return
        for start in range(0, len(body), SLICE):
            piece = body[start : start + SLICE]
            is_last = start + SLICE >= len(body)
            await self._send(
                {"type": message["type"], "body": piece, "more_body": more or not is_last}
            )

    async def _start(self, message: Message) -> None:
        """Begin an answer, or refuse the request if the answer is too large to be held now."""
        length = next((int(v) for n, v in message["headers"] if n == b"content-length"), 0)
        if length > SLICE:
            try:
                self._share.admit(2 * length)
            except Overloaded as error:
                self._is_replaced = True
                answer = refusal_response(_refusal(error), self._scope)
                await answer(self._scope, self._receive, self._send)
                return
        await self._send(message)


def _declared_length(scope: Scope) -> int:
    """Give what a request says of its body's length; what is too large is refused elsewhere."""
    for name, value in scope["headers"]:
        if name == b"content-length":
            length = int(value) if value.isdigit() else 0
            return length if length <= MAX_BODY else 0
    return 0


def _refusal(error: Overloaded) -> Refusal:
    status = 429 if isinstance(error, SubjectOverloaded) else 503
    return Refusal(status, error.message, error.code, error.retry_after)
