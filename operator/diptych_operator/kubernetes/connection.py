"""How the operator reaches the Kubernetes API: from inside the cluster, or by a kubeconfig.

kopf finds the credentials. The sessions made of them serve both users of the API: kopf, which
watches, and `client`, which does everything else.
"""

import os
import ssl
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import TypeAlias

import aiohttp
import kopf
from aiohttp import ClientHandlerType, ClientMiddlewareType, ClientRequest, ClientResponse

from diptych_operator.kubernetes.errors import UnavailableError

WatchObserver: TypeAlias = Callable[[str], None]
"""Called with the path of a watch, at each sign of the API or once the path is gone."""

_TOKEN_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
_TOKEN_SECONDS = 60.0  # after which the token is read again: the kubelet rotates it


@dataclass(frozen=True, slots=True)
class Connection:
    """The API's address, and the credentials for it."""

    server: str
    tls: ssl.SSLContext | bool
    authorization: Callable[[], str | None]

    def session(
        self, on_watch_data: WatchObserver | None = None, on_gone: WatchObserver | None = None
    ) -> aiohttp.ClientSession:
        """Open a session; the caller closes it. `on_gone` is called with each path that is 404."""
        middlewares: list[ClientMiddlewareType] = [self._authorize]
        if on_watch_data is not None:
            middlewares.append(_watch_middleware(on_watch_data, on_gone or (lambda _: None)))
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=self.tls),
            headers={"User-Agent": "diptych-operator"},
            middlewares=middlewares,
        )

    async def _authorize(
        self, request: ClientRequest, handler: ClientHandlerType
    ) -> ClientResponse:
        if header := self.authorization():
            request.headers["Authorization"] = header
        return await handler(request)


def find_connection() -> Connection:
    """Find the address and credentials of the cluster that the process runs in, or of a kubeconfig.

    Raises `UnavailableError` if there is neither.
    """
    settings = kopf.OperatorSettings()
    if found := kopf.login_with_service_account(settings=settings):
        host = os.environ.get("KUBERNETES_SERVICE_HOST", "kubernetes.default.svc")
        port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        info = replace(found, server=f"https://{f'[{host}]' if ':' in host else host}:{port}")
        return Connection(info.server, info.as_ssl_context(), _service_account_token())
    if found := kopf.login_with_kubeconfig(settings=settings):
        header = found.as_http_headers().get("Authorization")
        is_tls = found.server.startswith("https")
        return Connection(found.server, found.as_ssl_context() if is_tls else True, lambda: header)
    raise UnavailableError("there is no cluster: not inside one, and no kubeconfig is there")


def _service_account_token() -> Callable[[], str | None]:
    """Make the Authorization header from the service account's token, read again every minute."""
    token, read_at = "", float("-inf")

    def header() -> str:
        nonlocal token, read_at
        if time.monotonic() - read_at > _TOKEN_SECONDS:
            token, read_at = _TOKEN_FILE.read_text(encoding="utf-8").strip(), time.monotonic()
        return f"Bearer {token}"

    return header


def _watch_middleware(on_watch_data: WatchObserver, on_gone: WatchObserver) -> ClientMiddlewareType:
    async def observe(request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        response = await handler(request)
        if response.status == HTTPStatus.NOT_FOUND:  # kopf reads no single objects
            on_gone(request.url.path)
        if "watch" not in request.url.query:
            return response
        path = request.url.path
        if response.ok or response.status == HTTPStatus.FORBIDDEN:
            on_watch_data(path)  # a missing right is an answer, and no restart would grant it
        if response.ok:
            content = _ObservedContent(response.content, lambda: on_watch_data(path))
            response.content = content  # type: ignore[assignment]
        return response

    return observe


class _ObservedContent:
    """A response's content that reports every chunk."""

    def __init__(self, content: aiohttp.StreamReader, on_chunk: Callable[[], None]) -> None:
        self._content = content
        self._on_chunk = on_chunk

    def __getattr__(self, name: str) -> object:
        return getattr(self._content, name)

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        async for chunk in self._content.iter_chunked(size):
            self._on_chunk()
            yield chunk
