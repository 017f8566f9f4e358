"""Asks a collector by HTTP, and reads no more of its answer than it must, and not for long."""

import io
import socket
import time
from contextlib import suppress
from http.client import HTTPResponse
from http.cookiejar import DefaultCookiePolicy
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from requests.cookies import RequestsCookieJar
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection

from diptych.net.proxies import proxy_for, through

MAX_ANSWER = 64 * 1024  # bytes; what a collector says is not looked at
_MAX_RECEIVED = 4 * MAX_ANSWER  # of an answer with its head, and with all that comes before that
_FIRST_REDIRECT, _FIRST_ERROR = 300, 400


class AnswerGivenUp(Exception):
    """An answer is not read on; the message says why. Neither urllib3 nor requests knows it."""


class BoundedSession(requests.Session):
    """Follows no redirect, keeps no cookie. `said` is what the last request came to, in short.

    With `trust_env` a CA bundle of the environment would take the place of the collector's, and
    what is in `.netrc` would be sent to it.
    """

    said = "cannot be reached"

    def __init__(self) -> None:
        super().__init__()
        self.trust_env = False
        self.cookies = RequestsCookieJar(policy=DefaultCookiePolicy(allowed_domains=()))
        for scheme in ("http://", "https://"):
            self.mount(scheme, _BoundedAdapter())

    def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:  # noqa: ANN401
        options["stream"] = True  # else the whole answer is read, however long it is
        proxy = proxy_for(str(request.url))
        options["proxies"] = {"http": proxy, "https": proxy} if proxy else {}
        try:
            response = super().send(request, **options)
        except AnswerGivenUp as error:
            self.said = str(error)
            raise
        except Exception as error:  # OSErrors are those of requests, and files that are not there
            self.said = f"cannot be asked: {through(proxy, type(error).__name__)}"
            raise
        self.said = f"answers {response.status_code}"
        _read(response)
        if _FIRST_REDIRECT <= response.status_code < _FIRST_ERROR:  # which counts as success there
            raise requests.TooManyRedirects(self.said, response=response)
        return response

    def get_redirect_target(self, _: requests.Response) -> None:
        """Look at no `Location`, which may be anything."""


def _read(response: requests.Response) -> None:
    """Read an answer to its end, as its connection is used again; give it up if it is too long.

    How long that may take is bounded below (`_Bounded`).
    """
    size = 0
    # The status has been read, and says what became of the spans.
    with suppress(Exception):
        while chunk := response.raw.read1(MAX_ANSWER):
            size += len(chunk)
            if size > MAX_ANSWER:
                response.close()
                return


class _BoundedAdapter(HTTPAdapter):
    """Makes connections of which each answer is bounded."""

    def get_connection_with_tls_context(self, *about: Any, **options: Any) -> HTTPConnectionPool:  # noqa: ANN401
        pool: HTTPConnectionPool = super().get_connection_with_tls_context(*about, **options)
        is_tls = isinstance(pool, HTTPSConnectionPool)
        pool.ConnectionCls = _TlsConnection if is_tls else _Connection
        return pool


class _BoundedResponse(HTTPResponse):
    """Reads of its connection through bounds: also what comes before its head, and trailers."""

    def __init__(self, sock: socket.socket, *about: Any, **options: Any) -> None:  # noqa: ANN401
        super().__init__(sock, *about, **options)
        self.fp.close()
        self.fp = io.BufferedReader(_Bounded(sock))


class _Connection(HTTPConnection):
    response_class = _BoundedResponse


class _TlsConnection(HTTPSConnection):
    response_class = _BoundedResponse


class _Bounded(io.RawIOBase):
    """One answer, read in so many bytes at most, and in all as long as the socket waits for one."""

    def __init__(self, sock: socket.socket) -> None:
        self._file = sock.makefile("rb", buffering=0)
        self._left = _MAX_RECEIVED
        seconds = sock.gettimeout()
        self._deadline = time.monotonic() + (10.0 if seconds is None else seconds)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int | None:  # noqa: ANN401 - any that can be written
        if self._left <= 0:
            raise AnswerGivenUp("answers too much")
        if time.monotonic() > self._deadline:
            raise AnswerGivenUp("does not end its answer")
        count = self._file.readinto(buffer)
        self._left -= count or 0
        return count

    def close(self) -> None:
        self._file.close()
        super().close()
