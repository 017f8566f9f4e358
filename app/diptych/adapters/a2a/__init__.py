"""Other agents over A2A 1.0: fulfils the port `Agents`.

`watch` keeps each peer's card, `errand` takes one delegation to its end, `heard` is
what the other agent said of it, `wire` is HTTP and URLs.

Not here: being asked by other agents (`http.a2a`).
"""

import asyncio
from collections.abc import Callable, Sequence
from uuid import uuid4

import httpx
from a2a.client import ClientCallContext
from a2a.extensions.common import HTTP_EXTENSION_HEADER
from a2a.types import Message, Part, Role, SendMessageConfiguration, SendMessageRequest
from a2a.utils.errors import InternalError
from google.protobuf.json_format import ParseDict

from diptych.adapters.a2a.delegation import DelegationTask
from diptych.adapters.a2a.http_client import card_url, http_client, identity
from diptych.adapters.a2a.peer import Known, PeerStatus, PeerWatch
from diptych.config.settings import PeerConfig
from diptych.errors import DelegationError
from diptych.loop.catalog import Peer, Unavailable
from diptych.loop.messages import CallOutput
from diptych.loop.text import well_formed
from diptych.net import a2a_extension
from diptych.ports import DelegationRequest, Progress

__all__ = ["A2aAgents", "PeerStatus", "http_client"]

MAX_DEPTH = 5  # agents that a request may come through (loop.md §5)
DEFAULT_SECONDS = 300.0  # for a delegation of a run without a deadline
GOODBYE = 0.8  # seconds that a cancelled delegation waits for its agent to be told


class A2aAgents:
    """The agents of one manifest.

    `own_url` is this agent's card URL or base URL, as others reach it: it goes on the call path.
    `http` is a client to share, else there is an own one; see `http_client`.
    """

    def __init__(
        self,
        peers: Sequence[PeerConfig],
        own_url: Callable[[], str] | str,
        http: httpx.AsyncClient | None = None,
    ) -> None:
        self._own_url = own_url
        self._owns_http = http is None
        self._http = http or http_client()
        self._watches = {peer.name: PeerWatch(peer, self._http) for peer in peers}
        self._tasks: list[asyncio.Task[None]] = []
        self._goodbyes: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Begin to look for the agents; returns at once."""
        self._tasks = [asyncio.create_task(watch.watch()) for watch in self._watches.values()]

    async def wait_for_first_attempt(self, timeout: float) -> None:  # noqa: ASYNC109 - a wait, not a failure
        """Wait until every agent was looked for once, but no longer than `timeout` seconds."""
        tries = [asyncio.create_task(w.tried.wait()) for w in self._watches.values()]
        if tries:
            _, unfinished = await asyncio.wait(tries, timeout=timeout)
            for task in unfinished:
                task.cancel()

    async def aclose(self) -> None:
        """Stop looking; let agents that are just being told to stop hear it."""
        if self._goodbyes:
            await asyncio.wait(self._goodbyes, timeout=GOODBYE)
        tasks = (*self._tasks, *self._goodbyes)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._owns_http:
            await self._http.aclose()

    def status(self) -> tuple[PeerStatus, ...]:
        """Say how each agent stands, in the manifest's order."""
        return tuple(watch.status for watch in self._watches.values())

    def snapshot(self) -> tuple[tuple[Peer, ...], tuple[Unavailable, ...]]:
        offers = [watch.snapshot() for watch in self._watches.values()]
        return (
            tuple(offer for offer in offers if isinstance(offer, Peer)),
            tuple(offer for offer in offers if isinstance(offer, Unavailable)),
        )

    async def delegate(self, errand: DelegationRequest, progress: Progress) -> CallOutput:
        watch = self._watches.get(errand.agent)
        if watch is None:
            raise DelegationError("refused", f"no agent is called {errand.agent}")
        known = watch.known
        if known is None:
            reason = watch.status.problem
            raise DelegationError("unavailable", f"agent {errand.agent} is unavailable: {reason}")
        path = self._path(errand, known)
        seconds = DEFAULT_SECONDS if errand.seconds_left is None else errand.seconds_left
        if seconds <= 0:
            raise DelegationError("timeout", "there was no time left to ask another agent")
        sent = DelegationTask(
            errand.agent, known.client, _call_context(errand, watch, known), progress
        )
        request = _request(errand, watch.address, path, seconds)
        request.configuration.return_immediately = not known.card.capabilities.streaming
        try:
            return await self._within(seconds, sent, request)
        except DelegationError as error:
            is_busy = isinstance(error.__cause__, InternalError)
            if error.kind in ("unavailable", "unknown") and not is_busy:
                watch.mark_down("it could not be reached")
            raise

    def _path(self, errand: DelegationRequest, known: Known) -> tuple[str, ...]:
        """Give the path with this agent on it. Raises `DelegationError` if it may not be gone."""
        own = card_url(self._own_url if isinstance(self._own_url, str) else self._own_url())
        path = (*errand.path, own)
        if any(identity(url) in known.identities for url in path):
            raise DelegationError(
                "refused",
                f"agent {errand.agent} is waiting for this very request: do it without that agent",
            )
        if len(path) > MAX_DEPTH:
            raise DelegationError(
                "refused",
                f"the request came through {MAX_DEPTH} agents already, and may go no deeper",
            )
        return path

    async def _within(
        self, seconds: float, sent: DelegationTask, request: SendMessageRequest
    ) -> CallOutput:
        """Take the errand to its end, or call it off: at its agent too, however it is left."""
        try:
            async with asyncio.timeout(seconds):
                return await sent.run(request)
        except TimeoutError as error:
            await self._say_goodbye(sent)
            raise DelegationError(
                "timeout", f"there was no answer within {seconds:.3g} s; the agent was told to stop"
            ) from error
        except (asyncio.CancelledError, DelegationError):
            await self._say_goodbye(sent)
            raise

    async def _say_goodbye(self, sent: DelegationTask) -> None:
        """Cancel the task at its agent, and wait a little for it; a second cancel does not."""
        task = asyncio.create_task(sent.cancel())
        self._goodbyes.add(task)
        task.add_done_callback(self._goodbyes.discard)
        await asyncio.wait([task], timeout=GOODBYE)


def _call_context(errand: DelegationRequest, watch: PeerWatch, known: Known) -> ClientCallContext:
    headers = watch.headers() if known.takes_headers else {}
    if watch.address.share_context:
        headers[HTTP_EXTENSION_HEADER] = a2a_extension.URI
    if errand.traceparent:
        headers["traceparent"] = errand.traceparent
    return ClientCallContext(service_parameters=headers)


def _request(
    errand: DelegationRequest, address: PeerConfig, path: tuple[str, ...], seconds: float
) -> SendMessageRequest:
    """Put a delegation into one message: the task alone, for an agent that shares no context."""
    message = Message(
        message_id=str(uuid4()),
        context_id=errand.context_id,
        role=Role.ROLE_USER,
        parts=[Part(text=well_formed(errand.task))],
    )
    if address.share_context:
        uri = a2a_extension.URI
        message.extensions.append(uri)
        message.metadata.update({uri: a2a_extension.terms_value(path, seconds)})
        if errand.context:
            part = Part(media_type="application/json", metadata={uri: {"content": "messages"}})
            ParseDict(dict(a2a_extension.context_value(errand.context)), part.data)
            message.parts.append(part)
    return SendMessageRequest(message=message, configuration=SendMessageConfiguration())
