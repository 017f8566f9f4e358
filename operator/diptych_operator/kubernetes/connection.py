"""How the operator reaches the Kubernetes API: in the cluster, or by a kubeconfig.

The credentials are found as kopf finds them, and given to both of the API's users: to kopf, which
watches, and to `cluster`, which writes. What is heard of a watch is noted (`silence`).

Not here: requests and their errors (`cluster`).
"""

import os
import ssl
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path

import aiohttp
import kopf
from aiohttp import ClientHandlerType, ClientMiddlewareType, ClientRequest, ClientResponse

from diptych_operator.kubernetes.errors import UnavailableError
from diptych_operator.watch.staleness import Silence

_TOKEN_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
_TOKEN_SECONDS = 60.0  # after which a rotated token is read again


@dataclass(frozen=True, slots=True)
class Connection:
    """The API's address and the credentials for it."""

    server: str
    tls: ssl.SSLContext | bool
    authorization: Callable[[], str | None]

    def session(self, silence: Silence | None = None) -> aiohttp.ClientSession:
        """Open a session; the caller closes it."""
        middlewares: list[ClientMiddlewareType] = [self._authorized]
        if silence is not None:
            middlewares.append(_listening(silence))
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=self.tls),
            headers={"User-Agent": "diptych-operator"},
            middlewares=middlewares,
        )

    async def _authorized(
        self, request: ClientRequest, handler: ClientHandlerType
    ) -> ClientResponse:
        if header := self.authorization():
            request.headers["Authorization"] = header
        return await handler(request)


def connect() -> Connection:
    """Find the cluster that the process runs in, or else the kubeconfig's current one.

    Raises `UnavailableError` if there is neither.
    """
    settings = kopf.OperatorSettings()
    if found := kopf.login_with_service_account(settings=settings):
        host = os.environ.get("KUBERNETES_SERVICE_HOST", "kubernetes.default.svc")
        port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        info = replace(found, server=f"https://{f'[{host}]' if ':' in host else host}:{port}")
        return Connection(info.server, info.as_ssl_context(), _rotating_token())
    if found := kopf.login_with_kubeconfig(settings=settings):
        header = found.as_http_headers().get("Authorization")
        secure = found.server.startswith("https")
        return Connection(found.server, found.as_ssl_context() if secure else True, lambda: header)
    raise UnavailableError("there is no cluster: not inside one, and no kubeconfig is there")


def _rotating_token() -> Callable[[], str | None]:
    """Read the service account's token, anew every minute: the kubelet replaces it."""
    token, read_at = "", float("-inf")

    def header() -> str:
        nonlocal token, read_at
        if time.monotonic() - read_at > _TOKEN_SECONDS:
            token, read_at = _TOKEN_FILE.read_text(encoding="utf-8").strip(), time.monotonic()
        return f"Bearer {token}"

    return header


def _listening(silence: Silence) -> ClientMiddlewareType:
    async def listen(request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        response = await handler(request)
        if "watch" not in request.url.query:
            return response
        path = request.url.path
        if response.ok or response.status == HTTPStatus.FORBIDDEN:
            silence.heard(path)  # a right that is missing is told, and no restart brings it
        if response.ok:
            response.content = _Heard(response.content, lambda: silence.heard(path))  # type: ignore[assignment]
        return response

    return listen


class _Heard:
    """A response's content that tells of every piece that arrives."""

    def __init__(self, content: aiohttp.StreamReader, tell: Callable[[], None]) -> None:
        self._content = content
        self._tell = tell

    def __getattr__(self, name: str) -> object:
        return getattr(self._content, name)

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        async for piece in self._content.iter_chunked(size):
            self._tell()
            yield piece
