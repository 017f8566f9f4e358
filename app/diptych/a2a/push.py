"""Push notifications: a task's states, and the task at its end, are sent to URLs of callers.

Any replica may send them. Each is sent at least once, in order, and up to six times within about
five minutes if its receiver does not take it; then it is dropped, with a line in the log. Payloads
are stream responses of A2A 1.0 (4.3.3), signed as in Standard Webhooks if the caller gave a token.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from urllib.parse import urlsplit

import httpx
import orjson
from a2a.types import StreamResponse, TaskPushNotificationConfig, TaskStatusUpdateEvent
from a2a.utils.errors import InvalidParamsError
from google.protobuf.json_format import MessageToDict

from diptych.a2a.http_client import http_client
from diptych.a2a.task import TaskUpdates, task_snapshot
from diptych.access.signatures import signing_key, standard_signature
from diptych.core.codec import TERMINAL, Record, is_terminal
from diptych.core.errors import RunLost, RunNotFound, StoreError
from diptych.core.messages import JSONObject
from diptych.net.outgoing import AddressRefused, OutgoingPolicy, host_of
from diptych.ports.entries import TAKEN_SECONDS, Push, RunEntry
from diptych.ports.ids import public_id
from diptych.ports.stores import Pushes
from diptych.runs.service import RunService

RETRY_SECONDS = (0, 2, 10, 30, 90, 180)
"""The pauses before each try to send a notification."""
MAX_CONFIGS = 10  # of one task

_SEND_SECONDS = 10.0
_RESOLVE_SECONDS = 2.0
_MAX_ID, _MAX_URL, _MAX_SECRET = 128, 2048, 4096  # characters
_logger = logging.getLogger(__name__)


class PushSender:
    """Sends the notifications of the pushes that this process has taken.

    `hosts` may have private addresses; only to them notifications go without TLS. `schema` is the
    agent's output schema.
    """

    def __init__(
        self,
        runs: RunService,
        pushes: Pushes,
        hosts: Sequence[str] = (),
        schema: JSONObject | None = None,
    ) -> None:
        self._runs = runs
        self.pushes = pushes
        self._policy = OutgoingPolicy(f"http://{host}" for host in hosts)
        self._schema = schema
        self._client: httpx.AsyncClient | None = None
        self._sending: dict[tuple[str, str], asyncio.Task[None]] = {}

    async def aclose(self) -> None:
        """Stop sending; what is left becomes due for other processes at once."""
        tasks = tuple(self._sending.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._client:
            await self._client.aclose()

    async def check(self, config: TaskPushNotificationConfig) -> None:
        """Raise `InvalidParamsError` for a config that cannot be used, or whose URL is refused."""
        if problem := _problem(config) or await self._url_problem(config.url):
            raise InvalidParamsError(f"the push notification config is refused: {problem}")

    async def _url_problem(self, url: str) -> str:
        try:
            parts = urlsplit(url)
            host, port, _ = parts.hostname or "", parts.port, httpx.URL(url).host
            host.encode("idna")  # as the look-up does
        except (ValueError, httpx.InvalidURL):
            return "url is no URL"
        if parts.scheme not in {"http", "https"} or not host or len(url) > _MAX_URL:
            return "url must be a URL such as https://client.example.com/notify"
        if parts.username is not None or parts.fragment:
            return "url may have no user and no fragment; put secrets into token or authentication"
        if parts.scheme == "http" and host not in self._policy.named:
            return "url must begin with https://; others need chat.webhookHosts in the manifest"
        try:
            async with asyncio.timeout(_RESOLVE_SECONDS):
                await self._policy.addresses(host, port or 443)
        except AddressRefused:
            return (
                "url leads to an address that this agent may not connect to; private ones need "
                "chat.webhookHosts in the manifest"
            )
        except (OSError, TimeoutError):
            pass  # the name may resolve later: each connection is checked
        return ""

    async def put(self, entry: RunEntry, config: TaskPushNotificationConfig) -> None:
        """Store a checked config of a run, and send what happens from now on."""
        there = await self.pushes.pushes(entry.run_id)
        if len(there) >= MAX_CONFIGS and config.id not in {push.config_id for push in there}:
            raise InvalidParamsError(f"a task has at most {MAX_CONFIGS} push notification configs")
        push = Push(entry.run_id, config.id, config.SerializeToString(), entry.seq)
        has_ended = entry.status in TERMINAL
        await self.pushes.put_push(push, None if has_ended else TAKEN_SECONDS)
        if not has_ended:
            self.send(push)

    def send(self, push: Push) -> None:
        """Send a push's notifications in the background; this process has taken it."""
        key = push.run_id, push.config_id
        if key not in self._sending:
            self._sending[key] = task = asyncio.create_task(self._send_all(push))
            task.add_done_callback(lambda _: self._sending.pop(key))

    async def _send_all(self, push: Push) -> None:
        sending = _Sending(self.pushes, push)
        keeping = asyncio.create_task(sending.keep())
        try:
            async for seq, response in self._notifications(push):
                await self._deliver(sending, seq, response)
                is_last = response.HasField("task")
                await sending.advance(seq, None if is_last else TAKEN_SECONDS)
                if is_last or sending.is_deleted:
                    return
            await sending.advance(sending.push.seq, 0)  # this process ends
        except (RunNotFound, RunLost):
            return
        except StoreError as error:
            _logger.warning("push notifications of %s are interrupted: %s", push.run_id, error)
        except asyncio.CancelledError:
            with suppress(StoreError):
                await sending.advance(sending.push.seq, 0)
            raise
        finally:
            keeping.cancel()

    async def _notifications(self, push: Push) -> AsyncIterator[tuple[int, StreamResponse]]:
        """Yield what follows a push's `seq`: each state, with its seq, and at the end the task."""
        entry = await self._runs.entry(push.run_id)
        entry = replace(entry, session_id=public_id(entry.session_id))
        updates = TaskUpdates(entry, has_pieces=False)
        sent = await self._runs.records(push.run_id, limit=push.seq) if push.seq else ()
        list(updates.of(sent))
        async with aclosing(self._runs.subscribe(push.run_id, push.seq)) as batches:
            async for batch in batches:
                for record in (item for item in batch if isinstance(item, Record)):
                    if is_terminal(record):
                        records = await self._runs.records(push.run_id)
                        task = task_snapshot(entry, records, schema=self._schema)
                        yield record.seq, StreamResponse(task=task)
                        return
                    for update in updates.of([record]):
                        if isinstance(update, TaskStatusUpdateEvent):
                            yield record.seq, StreamResponse(status_update=update)

    async def _deliver(self, sending: "_Sending", seq: int, response: StreamResponse) -> None:
        """Send one notification, with retries; its id is the same in each try, at any replica."""
        body = orjson.dumps(MessageToDict(response))
        message_id, problem = f"{sending.push.run_id}-{seq}-{sending.push.config_id}", ""
        for pause in RETRY_SECONDS:
            await asyncio.sleep(pause)
            config = TaskPushNotificationConfig.FromString(sending.push.config)
            if sending.is_deleted or not (problem := await self._post(config, message_id, body)):
                return
        host = host_of(config.url)
        _logger.warning("a push notification of %s to %s is lost: %s", message_id, host, problem)

    async def _post(self, config: TaskPushNotificationConfig, message_id: str, body: bytes) -> str:
        """Send a notification once; return why it was not taken, or nothing."""
        if problem := await self._url_problem(config.url):
            return problem
        self._client = self._client or http_client(self._policy)
        try:
            async with (
                asyncio.timeout(_SEND_SECONDS),
                self._client.stream(
                    "POST", config.url, content=body, headers=_headers(config, message_id, body)
                ) as response,
            ):
                return "" if response.is_success else f"status {response.status_code}"
        except (httpx.HTTPError, OSError, TimeoutError) as error:
            return type(error).__name__


class _Sending:
    """A push that this process has taken, and how far it has come."""

    def __init__(self, pushes: Pushes, push: Push) -> None:
        self._pushes = pushes
        self.push = push
        self.is_deleted = False

    async def advance(self, seq: int, seconds: float | None) -> None:
        """Note what was sent, and when another process may take the push; learn of its changes."""
        self.push = replace(self.push, seq=seq)
        config = await self._pushes.advance_push(self.push, seconds)
        self.is_deleted = config is None
        self.push = replace(self.push, config=config or b"")

    async def keep(self) -> None:
        """Renew the push, until cancelled."""
        while True:
            await asyncio.sleep(TAKEN_SECONDS / 3)
            with suppress(StoreError):
                await self.advance(self.push.seq, TAKEN_SECONDS)


def _headers(config: TaskPushNotificationConfig, message_id: str, body: bytes) -> dict[str, str]:
    timestamp = str(int(time.time()))
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "diptych",
        "webhook-id": message_id,
        "webhook-timestamp": timestamp,
    }
    if config.token:
        headers["X-A2A-Notification-Token"] = config.token
        key = signing_key(config.token)
        headers["webhook-signature"] = standard_signature(key, message_id, timestamp, body)
    if config.authentication.scheme:
        about = config.authentication
        headers["Authorization"] = f"{about.scheme} {about.credentials}".strip()
    return headers


def _problem(config: TaskPushNotificationConfig) -> str:
    """Return why a config is not usable, whatever its URL."""
    if len(config.id) > _MAX_ID or not config.id.isprintable():
        return f"id must be one line of at most {_MAX_ID} characters"
    about = config.authentication
    for name, text in {
        "token": config.token,
        "authentication.scheme": about.scheme,
        "authentication.credentials": about.credentials,
    }.items():
        if len(text) > _MAX_SECRET or not (text.isascii() and text.isprintable()):
            return f"{name} must be at most {_MAX_SECRET} printable ASCII characters"
    try:
        signing_key(config.token)
    except ValueError as error:
        return f"token is {error}"
    return ""


def shown(config: TaskPushNotificationConfig) -> TaskPushNotificationConfig:
    """Return a config without its secrets."""
    public = TaskPushNotificationConfig()
    public.CopyFrom(config)
    public.ClearField("token")
    if public.HasField("authentication"):
        public.authentication.ClearField("credentials")
    return public
