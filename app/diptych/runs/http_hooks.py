"""Hooks over HTTP, signed as in Standard Webhooks. A request is sent once."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from uuid import uuid4

import httpx
import orjson

from diptych.access.signatures import signing_key, standard_signature
from diptych.core.messages import JSONObject
from diptych.net.guarded_backend import PoolLimits, use_guarded_pool
from diptych.net.outgoing import OutgoingPolicy, host_of
from diptych.net.proxies import proxy_for, through
from diptych.net.received import Received, TooMuchReceived, is_compressed
from diptych.net.strict_reading import read_strictly
from diptych.runs.definition import HookConfig
from diptych.runs.hooks import Hook, HookFailed

MAX_ANSWER = 1024 * 1024  # bytes
CONNECT_SECONDS = 5.0
_MAX_CONNECTIONS = 100
_NO_CONTENT = 204


class HttpHooks:
    """The hooks of one agent, and their shared client.

    `add_traceparent` adds the trace context to the headers.
    """

    def __init__(
        self,
        agent: str,
        configs: Sequence[HookConfig],
        add_traceparent: Callable[[dict[str, str]], None] | None = None,
    ) -> None:
        self._agent = agent
        self._add_traceparent = add_traceparent
        self._client = _client(OutgoingPolicy(config.url for config in configs))
        self.hooks = tuple(
            Hook(_name(config), config.at, partial(self._ask, config), config.timeout)
            for config in configs
        )

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _ask(self, config: HookConfig, question: JSONObject) -> Any:  # noqa: ANN401 - JSON
        """Send a question and return the answer. Raises `HookFailed`."""
        name = _name(config)
        body = orjson.dumps({"agent": self._agent, **question})
        headers = {"content-type": "application/json", **_signature(config, body)}
        for header, read in config.headers.items():
            if (value := read()) is None:
                raise HookFailed(name, f"has no value for its header {header}")
            headers[header] = value
        if self._add_traceparent:
            self._add_traceparent(headers)
        try:
            async with self._client.stream(
                "POST", config.url, content=body, headers=headers
            ) as response:
                if not response.is_success:
                    raise HookFailed(name, f"answered with status {response.status_code}")
                return await _read(name, response)
        except httpx.HTTPError as error:
            reason = through(proxy_for(config.url), type(error).__name__)
            raise HookFailed(name, f"cannot be reached: {reason}") from error


def _name(config: HookConfig) -> str:
    return f"{config.at} at {host_of(config.url)}"


async def _read(name: str, response: httpx.Response) -> Any:  # noqa: ANN401 - JSON
    """Read an answer; None if empty. Its memory is counted until it is parsed.

    Compressed answers are refused, as the request does not accept any.
    """
    if is_compressed(response.headers):
        raise HookFailed(name, "returned a compressed answer")
    received = Received(max_bytes=MAX_ANSWER)
    try:
        body = await received.read(response.aiter_raw())
        if not body or response.status_code == _NO_CONTENT:
            return None
        orjson.loads(body)  # invalid JSON gets its own message
        return await read_strictly(body)
    except TooMuchReceived as error:
        raise HookFailed(name, f"returned too much: {error.reason}") from None
    except orjson.JSONDecodeError:
        raise HookFailed(name, "returned something that is not JSON") from None
    except ValueError as error:  # other parsers, such as a proxy's, may read it differently
        raise HookFailed(name, f"returned ambiguous JSON: {error}") from None
    finally:
        received.release()


def _signature(config: HookConfig, body: bytes) -> dict[str, str]:
    """Return the headers that identify a request, with a signature if there is a key."""
    message_id, timestamp = f"msg_{uuid4().hex}", str(int(time.time()))
    headers = {"webhook-id": message_id, "webhook-timestamp": timestamp}
    if config.signing_key is None:
        return headers
    key = config.signing_key()
    if not key:
        raise HookFailed(_name(config), "has no signing key")
    try:
        secret = signing_key(key)
    except ValueError as error:
        raise HookFailed(_name(config), f"has a signing key that is {error}") from None
    signature = standard_signature(secret, message_id, timestamp, body)
    return {**headers, "webhook-signature": signature}


def _client(policy: OutgoingPolicy) -> httpx.AsyncClient:
    """Make a client that follows no redirects and connects only where the policy allows."""
    context = httpx.create_ssl_context()
    transport = httpx.AsyncHTTPTransport(verify=context)
    limits = PoolLimits(_MAX_CONNECTIONS, kept_alive=10)
    use_guarded_pool(transport, policy, context, limits)
    return httpx.AsyncClient(
        transport=transport,
        timeout=httpx.Timeout(None, connect=CONNECT_SECONDS),  # the hook's timeout bounds the rest
        headers={"Accept-Encoding": "identity", "User-Agent": "diptych"},
        follow_redirects=False,
        trust_env=False,
    )
