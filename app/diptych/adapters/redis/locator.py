"""Opens connections to the store, wherever its master is now.

Not here: what is said over them (`link`, `feed`). redis-py's own clients and pools are not used:
a pool costs a multiple of a shared connection (docs/decisions), and its retries would send again
what must not be.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol, cast

from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    NoPermissionError,
    RedisError,
    ResponseError,
)

from diptych.adapters.redis.settings import read_url
from diptych.errors import ConfigError
from diptych.ports import Secret

CONNECT_SECONDS = 1.0
SENTINEL_SECONDS = 0.5
FOLLOW_SECONDS = 2.0
_log = logging.getLogger(__name__)


class Wire(Protocol):
    """What is used of redis-py's connections."""

    host: str
    port: int

    async def connect(self) -> None: ...
    async def disconnect(self, *, nowait: bool) -> None: ...
    async def send_packed_command(
        self, command: Sequence[bytes], *, check_health: bool
    ) -> None: ...
    async def send_command(self, *args: str) -> None: ...
    async def read_response(
        self,
        *,
        timeout: float = ...,  # noqa: ASYNC109 - theirs; inf: none
        disconnect_on_error: bool = ...,
    ) -> Any: ...  # noqa: ANN401 - whatever Redis replies


class Unreachable(Exception):
    """There is no connection to be had; the message says why, and what to do, to people.

    With `is_settled` waiting a moment will not help: something is set up wrongly.
    """

    def __init__(self, message: str, *, is_settled: bool = False) -> None:
        super().__init__(message)
        self.is_settled = is_settled


class MasterLocator:
    """Where the store is: its URL is read anew for each connection, for it may come or change."""

    def __init__(self, url: Secret) -> None:
        self._url = url
        self._known = ""
        self._master: str | None = None  # what the sentinels call it
        self._wire: Wire | None = None
        self._sentinels: list[Wire] = []

    async def connect(self) -> Wire:
        """Give a connection to the master. Raises `Unreachable`."""
        try:
            wire = self._look_up()
            if self._master is not None:
                wire.host, wire.port = await self.master(self._master)
            await _connected(wire, CONNECT_SECONDS)
        except Unreachable:
            raise
        except Exception as error:  # whatever broke: who gave up here would never come back
            _log.exception("a connection to the store broke")
            raise unreachable(error) from error
        return wire

    async def follow(self) -> None:
        """Return only by raising `Unreachable`, when the URL or the sentinels name another."""
        here = (self._wire.host, self._wire.port) if self._wire and self._master else None
        while True:
            await asyncio.sleep(FOLLOW_SECONDS)
            if (self._url() or self._known) != self._known:
                raise Unreachable("the store's URL has changed")
            with suppress(Unreachable):  # that no sentinel answers says nothing of the master
                if self._master and await self.master(self._master) != here:
                    break
        raise Unreachable("the store has another master now")

    def _look_up(self) -> Wire:
        url = self._url()
        if not url:
            raise Unreachable("the store's URL is not there yet", is_settled=True)
        if self._wire is None or url != self._known:
            try:
                target = read_url(url)
            except ConfigError as error:
                raise Unreachable(str(error), is_settled=True) from None
            self._known, self._master = url, target.master
            self._wire = _wire(target.connection_class, target.server)
            self._sentinels = [_wire(target.connection_class, s) for s in target.sentinels]
        return self._wire

    async def master(self, name: str) -> tuple[str, int]:
        """Ask the sentinels, the one that answered last first. Raises `Unreachable`."""
        problem = Unreachable("no sentinel of the store can be reached")
        for sentinel in tuple(self._sentinels):
            try:
                address = await _ask_sentinel(sentinel, name)
            except Unreachable as error:
                problem = error
                continue
            if address:
                self._sentinels.remove(sentinel)
                self._sentinels.insert(0, sentinel)
                return address
            problem = Unreachable("the store's sentinels know no master of the name in its URL")
        raise problem


def _wire(connection_class: type[Any], options: dict[str, Any]) -> Wire:
    wire = connection_class(
        **options,
        protocol=2,
        driver_info=None,
        socket_timeout=None,
        socket_connect_timeout=CONNECT_SECONDS,
    )
    return cast("Wire", wire)


async def _connected(wire: Wire, seconds: float) -> None:
    """Connect and log in. What is wrong is told without what the server or the URL says."""
    try:
        async with asyncio.timeout(seconds):
            await wire.connect()
    except TimeoutError as error:
        await wire.disconnect(nowait=True)
        raise unreachable(error) from error
    except (RedisError, OSError) as error:
        await wire.disconnect(nowait=True)
        raise unreachable(error) from error
    except BaseException:
        await wire.disconnect(nowait=True)
        raise


def unreachable(error: Exception) -> Unreachable:
    """Put a library's error into words for people; the words hold nothing of its text."""
    match error:
        case Unreachable():
            return error
        case AuthenticationError():
            words = "the store refuses the login: check user and password in its URL"
            return Unreachable(words, is_settled=True)
        case NoPermissionError():
            return Unreachable(_NO_RIGHT, is_settled=True)
        case BusyLoadingError():
            return Unreachable("the store is still loading what it had saved")
        case TimeoutError():
            return Unreachable("the store does not answer")
    for part, words, is_settled in _WORDS:
        if part in str(error):
            return Unreachable(words, is_settled=is_settled)
    is_refusal = isinstance(error, ResponseError)
    return Unreachable(f"the store {'refuses a command' if is_refusal else 'cannot be reached'}")


_NO_RIGHT = "the store's user may not do all that is needed: see its ACL rules"
_WORDS = (  # of the server's or the TLS library's text, what that means, whether it will stay so
    ("DENIED", "the store is in protected mode: give it a password, and the URL", True),
    ("DB index", "the store has no database of the number in its URL", True),
    ("Invalid Database", "the store has no database of the number in its URL", True),
    ("script can't", _NO_RIGHT, True),  # so scripts are told of it
    ("CERTIFICATE", "the store's TLS certificate is not trusted: set ssl_ca_certs", True),
    ("MISCONF", "the store takes no writes, for it cannot save to its disk", False),
    ("NOREPLICAS", "the store takes no writes, for it has too few replicas", False),
    ("BUSY ", "the store is busy with a script", False),
)


async def _ask_sentinel(sentinel: Wire, name: str) -> tuple[str, int] | None:
    await _connected(sentinel, SENTINEL_SECONDS)
    try:
        async with asyncio.timeout(SENTINEL_SECONDS):
            await sentinel.send_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", name)
            found = await sentinel.read_response()
    except (RedisError, OSError, TimeoutError) as error:
        raise Unreachable("a sentinel of the store does not answer") from error
    finally:
        await sentinel.disconnect(nowait=True)
    return (found[0].decode(), int(found[1])) if found else None
