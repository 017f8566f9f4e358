"""Other agents over A2A: fulfils the port `Agents`.

`peer` keeps each agent's card fresh, `delegation` runs one delegation, `children` asks Diptych
agents for what A2A cannot express: decisions and run trees.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import cast
from uuid import uuid4

import httpx
from a2a.client import ClientCallContext
from a2a.extensions.common import HTTP_EXTENSION_HEADER
from a2a.types import Message, Part, Role, SendMessageConfiguration, SendMessageRequest
from google.protobuf.json_format import ParseDict

from diptych.a2a import extension
from diptych.a2a.children import fetch_tree, send_reply
from diptych.a2a.delegation import RECONNECT_SECONDS, DelegationTask
from diptych.a2a.http_client import card_url, http_client, identity
from diptych.a2a.peer import PeerMonitor, ResolvedPeer
from diptych.a2a.send_errors import is_unreached, unknown
from diptych.core import prompt
from diptych.core.catalog import Peer, Unavailable
from diptych.core.errors import DecisionRefused, DelegationError
from diptych.core.messages import JSON, CallOutput, ChildRun, JSONObject, ParentCall
from diptych.core.text import well_formed
from diptych.manifest.settings import PeerConfig
from diptych.net.outgoing import OutgoingPolicy
from diptych.net.redaction import SECRETS, redacted_output
from diptych.ports import ChildEvent, ChildRef, ChildReply, DelegationProgress, DelegationRequest

DEFAULT_TIMEOUT = 300.0  # seconds, of a delegation whose run has no deadline
CARD_POLL_SECONDS = 0.05
CANCEL_GRACE_PERIOD = 0.8  # seconds that a delegation waits for its cancellation to arrive


class A2aAgents:
    """The other agents of one manifest.

    `own_url` is this agent's card or base URL as others reach it, for the call path. `own_name`
    identifies the caller in delegations. Without a shared client `http` it makes and closes its
    own.
    """

    def __init__(
        self,
        peers: Sequence[PeerConfig],
        own_url: Callable[[], str] | str,
        http: httpx.AsyncClient | None = None,
        *,
        own_name: str = "",
    ) -> None:
        self._own_url = own_url
        self._own_name = own_name
        self._owns_http = http is None
        policy = OutgoingPolicy(peer.url for peer in peers)
        self._http = http or http_client(policy)
        self._monitors = {peer.name: PeerMonitor(peer, self._http, policy) for peer in peers}
        self._tasks: list[asyncio.Task[None]] = []
        self._cancellations: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Start reading the agents' cards in the background."""
        self._tasks = [asyncio.create_task(m.run()) for m in self._monitors.values()]

    async def wait_for_first_attempt(self, timeout: float) -> None:  # noqa: ASYNC109 - not an error
        """Return when every agent's card has been tried once, or after `timeout` seconds."""
        waits = [asyncio.create_task(m.first_attempt.wait()) for m in self._monitors.values()]
        if waits:
            _, unfinished = await asyncio.wait(waits, timeout=timeout)
            for task in unfinished:
                task.cancel()

    async def aclose(self) -> None:
        """Stop reading cards; wait up to `CANCEL_GRACE_PERIOD` for pending cancellations to be
        sent.
        """
        if self._cancellations:
            await asyncio.wait(self._cancellations, timeout=CANCEL_GRACE_PERIOD)
        tasks = (*self._tasks, *self._cancellations)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._owns_http:
            await self._http.aclose()

    def snapshot(self) -> tuple[tuple[Peer, ...], tuple[Unavailable, ...]]:
        entries = [monitor.snapshot() for monitor in self._monitors.values()]
        return (
            tuple(entry for entry in entries if isinstance(entry, Peer)),
            tuple(entry for entry in entries if isinstance(entry, Unavailable)),
        )

    async def delegate(
        self, request: DelegationRequest, progress: DelegationProgress
    ) -> CallOutput:
        stream = SECRETS.stream()

        def report(seen: str | ChildRun | ChildEvent) -> None:
            if isinstance(seen, ChildRun):
                progress(seen)
            elif isinstance(seen, ChildEvent):
                progress(_redacted(seen))
            elif shown := stream.add(seen):
                progress(shown)

        output = await redacted_output(self._delegate(request, report))
        if rest := stream.end():
            progress(rest)
        return output

    async def reply(self, reply: ChildReply) -> None:
        try:
            monitor, peer = self._peer(reply.agent)
            headers = monitor.headers_for(peer)
        except DelegationError as error:
            raise DecisionRefused(error.message, code="agent_unavailable") from error
        if not (monitor.config.share_context and peer.base_url == reply.url):
            raise DecisionRefused(f"agent {reply.agent} is another one now")
        await send_reply(self._http, peer, headers, reply)

    async def run_tree(self, agent: str, child: ChildRef) -> JSON:
        monitor, peer = self._peer(agent)
        if not monitor.config.share_context:
            raise DelegationError("refused", "the agent is a stranger")
        headers = monitor.headers_for(peer)
        return await fetch_tree(self._http, peer, headers, child)

    def _peer(self, agent: str) -> tuple[PeerMonitor, ResolvedPeer]:
        """Return an agent of the manifest. Raises `DelegationError`."""
        monitor = self._monitors.get(agent)
        if monitor is None:
            raise DelegationError("refused", f"no agent is called {agent}")
        if monitor.resolved is None:
            raise DelegationError("unavailable", f"agent {agent} is unavailable: {monitor.reason}")
        return monitor, monitor.resolved

    async def _delegate(
        self, request: DelegationRequest, progress: DelegationProgress
    ) -> CallOutput:
        monitor, peer = await self._peer_of(request)
        path = self._path(request, peer)
        seconds = DEFAULT_TIMEOUT if request.seconds_left is None else request.seconds_left
        if request.is_taken_over:
            seconds = max(seconds, CANCEL_GRACE_PERIOD)  # to find it, and cancel it
        elif seconds <= 0:
            raise DelegationError("timeout", "there was no time left to ask another agent")
        is_streamed = peer.card.capabilities.streaming
        about = extension.DelegationMetadata(
            path=path,
            deadline=seconds,
            subject=request.subject,
            parent=ParentCall(self._own_name, request.run_id, request.call_id)
            if request.run_id
            else None,
            deadline_pauses=request.deadline_pauses,
            lease=extension.LEASE_SECONDS if peer.speaks_extension and is_streamed else None,
            budget=request.budget,
        )
        message = _send_request(request, about if monitor.config.share_context else None)
        message.configuration.return_immediately = not is_streamed
        context = _call_context(request, monitor, peer)
        task = DelegationTask(request, peer.base_url, peer.client, context, progress)
        try:
            return await self._run(task, request, message, seconds)
        except DelegationError as error:
            error.child = task.child
            if is_unreached(error.__cause__):
                monitor.mark_unavailable("it could not be reached")
            raise

    def _path(self, request: DelegationRequest, peer: ResolvedPeer) -> tuple[str, ...]:
        """Return the call path with this agent at its end.

        Raises `DelegationError` for a cycle or a path that is too long.
        """
        own = card_url(self._own_url if isinstance(self._own_url, str) else self._own_url())
        path = (*request.path, own)
        if any(identity(url) in peer.identities for url in path):
            raise DelegationError(
                "refused",
                f"agent {request.agent} is waiting for this very request: do it without that agent",
            )
        if len(path) > extension.MAX_DEPTH:
            raise DelegationError(
                "refused",
                f"the request came through {extension.MAX_DEPTH} agents already, and may go no "
                "deeper",
            )
        return path

    async def _peer_of(self, request: DelegationRequest) -> tuple[PeerMonitor, ResolvedPeer]:
        """Return the agent of a delegation; wait for its card if another process sent the
        delegation.
        """
        monitor = self._monitors.get(request.agent)
        if request.is_taken_over and monitor:
            with suppress(TimeoutError):
                async with asyncio.timeout(RECONNECT_SECONDS):
                    while monitor.resolved is None:  # noqa: ASYNC110 - its card is being read
                        await asyncio.sleep(CARD_POLL_SECONDS)
            if monitor.resolved is None:
                raise DelegationError("unknown", prompt.OUTCOME_UNKNOWN)
        return self._peer(request.agent)

    async def _run(
        self,
        task: DelegationTask,
        request: DelegationRequest,
        sent: SendMessageRequest,
        seconds: float,
    ) -> CallOutput:
        """Run the task until it ends or times out; on failure cancel it at the agent too."""
        try:
            async with task.time_limit.within(seconds):
                if request.is_taken_over:
                    is_streamed = not sent.configuration.return_immediately
                    return await task.take_up(request.context_id, is_streamed=is_streamed)
                return await task.run(sent)
        except TimeoutError as error:
            if task.has_ended:  # and only its stream has not
                return task.output()
            await self._cancel_at_agent(task)
            why = f"there was no answer within {seconds:.3g} s; {task.stop_note}"
            raise unknown(why) from error
        except asyncio.CancelledError:
            if not request.leaves_task():
                await self._cancel_at_agent(task)
            raise
        except DelegationError:
            await self._cancel_at_agent(task)
            raise

    async def _cancel_at_agent(self, delegation: DelegationTask) -> None:
        """Cancel the task at its agent and wait briefly; a second cancellation only ends the
        wait.
        """
        task = asyncio.create_task(delegation.cancel())
        self._cancellations.add(task)
        task.add_done_callback(self._cancellations.discard)
        await asyncio.wait([task], timeout=CANCEL_GRACE_PERIOD)


def _redacted(event: ChildEvent) -> ChildEvent:
    content, metadata = (SECRETS.redact_value(v) for v in (event.content, event.metadata))
    return replace(event, content=cast("JSON", content), metadata=cast("JSONObject", metadata))


def _call_context(
    request: DelegationRequest, monitor: PeerMonitor, peer: ResolvedPeer
) -> ClientCallContext:
    headers = monitor.headers_for(peer)
    if monitor.config.share_context and peer.speaks_extension:
        headers[HTTP_EXTENSION_HEADER] = extension.URI
    if request.traceparent:
        headers["traceparent"] = request.traceparent
    return ClientCallContext(service_parameters=headers)


def _send_request(
    request: DelegationRequest, about: extension.DelegationMetadata | None
) -> SendMessageRequest:
    """Build the request of a delegation; without `about` (not a Diptych agent) it has only the
    task.
    """
    message = Message(
        message_id=str(uuid4()),
        context_id=request.context_id,
        role=Role.ROLE_USER,
        parts=[Part(text=well_formed(request.task))],
    )
    if about is not None:
        message.extensions.append(extension.URI)
        message.metadata.update(extension.under_uri(extension.metadata_value(about)))
        if request.context:
            mark = {extension.URI: {"content": "messages"}}
            part = Part(media_type="application/json", metadata=mark)
            ParseDict(dict(extension.context_value(request.context)), part.data)
            message.parts.append(part)
    return SendMessageRequest(message=message, configuration=SendMessageConfiguration())
