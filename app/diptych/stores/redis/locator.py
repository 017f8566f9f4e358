"""Opens connections to the store, wherever its master is now."""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol, cast

from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ClusterCrossSlotError,
    ClusterDownError,
    MovedError,
    NoPermissionError,
    RedisError,
    ResponseError,
)

from diptych.core.errors import ConfigError
from diptych.net.backoff import Backoff
from diptych.net.redaction import SECRETS
from diptych.ports import ValueProvider
from diptych.stores.redis.settings import read_url

CONNECT_TIMEOUT_SECONDS = 1.0
SENTINEL_TIMEOUT_SECONDS = 0.5
WATCH_SECONDS = 2.0  # between two looks for another URL or master
_logger = logging.getLogger(__name__)


class RawConnection(Protocol):
    """A connection of redis-py: what is used of it."""

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
    """There is no connection to the store; the message tells people why, and what to do.

    With `is_settled` waiting a moment will not help: something is set up wrongly.
    """

    def __init__(self, message: str, *, is_settled: bool = False) -> None:
        super().__init__(message)
        self.is_settled = is_settled


def reconnect_backoff() -> Backoff:
    """Give the delays between two tries to connect."""
    return Backoff(initial=0.1, maximum=1.0)


class MasterLocator:
    """Finds the master. The URL is read again for each connection: it may appear or change."""

    def __init__(self, url: ValueProvider) -> None:
        self._url = url
        self._current_url = ""
        self._master_name: str | None = None  # only with sentinels
        self._connection: RawConnection | None = None
        self._sentinels: list[RawConnection] = []

    async def connect(self) -> RawConnection:
        """Give a connection to the master. Raises `Unreachable`."""
        try:
            connection = self._configured()
            if self._master_name is not None:
                connection.host, connection.port = await self._find_master(self._master_name)
            await _connect(connection, CONNECT_TIMEOUT_SECONDS)
        except Unreachable:
            raise
        except Exception as error:  # of any kind: after an error here nothing would reconnect
            _logger.exception("connecting to the store failed unexpectedly")
            raise unreachable(error) from error
        return connection

    async def watch_master(self) -> None:
        """Raise `Unreachable` as soon as the URL or the sentinels name another server."""
        connection, name = self._connection, self._master_name
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            if (self._url() or self._current_url) != self._current_url:
                raise Unreachable("the store's URL has changed")
            if connection is None or name is None:
                continue
            with suppress(Unreachable):  # sentinels that are away say nothing of the master
                if await self._find_master(name) != (connection.host, connection.port):
                    break
        raise Unreachable("the store has another master now")

    def _configured(self) -> RawConnection:
        """Give the connection that the URL describes, made anew only if the URL has changed."""
        url = self._url()
        if not url:
            raise Unreachable("the store's URL is not there yet", is_settled=True)
        SECRETS.remember(url)
        if self._connection is None or url != self._current_url:
            try:
                endpoint = read_url(url)
            except ConfigError as error:
                raise Unreachable(str(error), is_settled=True) from None
            self._current_url, self._master_name = url, endpoint.master
            kind = endpoint.connection_class
            self._connection = _new_connection(kind, endpoint.server)
            self._sentinels = [_new_connection(kind, options) for options in endpoint.sentinels]
        return self._connection

    async def _find_master(self, name: str) -> tuple[str, int]:
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
        try:
            raise problem
        finally:
            del problem  # its traceback leads here


def _new_connection(connection_class: type[Any], options: dict[str, Any]) -> RawConnection:
    connection = connection_class(
        **options,
        protocol=2,
        driver_info=None,
        socket_timeout=None,
        socket_connect_timeout=CONNECT_TIMEOUT_SECONDS,
    )
    return cast("RawConnection", connection)


async def _connect(connection: RawConnection, seconds: float) -> None:
    """Connect and log in. Raises `Unreachable`, with nothing of the server's text or the URL."""
    try:
        async with asyncio.timeout(seconds):
            await connection.connect()
    except TimeoutError as error:
        await connection.disconnect(nowait=True)
        raise unreachable(error) from error
    except (RedisError, OSError) as error:
        await connection.disconnect(nowait=True)
        raise unreachable(error) from error
    except BaseException:
        await connection.disconnect(nowait=True)
        raise


def unreachable(error: Exception) -> Unreachable:  # noqa: C901 - a table
    """Give an error of a library as one for people; its message holds nothing of the library's."""
    match error:
        case Unreachable():
            return error
        case AuthenticationError():
            message = "the store refuses the login: check user and password in its URL"
            return Unreachable(message, is_settled=True)
        case NoPermissionError():
            return Unreachable(_MISSING_PERMISSION, is_settled=True)
        case MovedError():
            return Unreachable(_CLUSTER.format("MOVED"), is_settled=True)
        case ClusterCrossSlotError():
            return Unreachable(_CLUSTER.format("CROSSSLOT"), is_settled=True)
        case ClusterDownError():
            return Unreachable("the store's cluster is down (CLUSTERDOWN)")
        case BusyLoadingError():
            return Unreachable("the store is still loading what it had saved")
        case TimeoutError():
            return Unreachable("the store does not answer")
    for part, message, is_settled in _KNOWN_ERRORS:
        if part in str(error):
            return Unreachable(message, is_settled=is_settled)
    if not isinstance(error, ResponseError):
        return Unreachable("the store cannot be reached")
    return Unreachable(f"the store refuses a command ({error.status_code or 'ERR'})")


_CLUSTER = (
    "the store is a Redis in cluster mode ({}), which spreads the keys of a run over its nodes: "
    "name a Redis without cluster mode, or with Sentinel"
)
_MISSING_PERMISSION = "the store's user may not do all that is needed: see its ACL rules"
_KNOWN_ERRORS = (  # part of the server's or the TLS library's text, message, is_settled
    ("DENIED", "the store is in protected mode: give it a password, and the URL", True),
    ("DB index", "the store has no database of the number in its URL", True),
    ("Invalid Database", "the store has no database of the number in its URL", True),
    ("hash to the same slot", _CLUSTER.format("CROSSSLOT"), True),  # inside a script
    ("non local key", _CLUSTER.format("MOVED"), True),  # inside a script
    ("script can't", _MISSING_PERMISSION, True),  # of a command inside a script
    ("CERTIFICATE", "the store's TLS certificate is not trusted: set ssl_ca_certs", True),
    ("MISCONF", "the store takes no writes, for it cannot save to its disk", False),
    ("NOREPLICAS", "the store takes no writes, for it has too few replicas", False),
    ("BUSY ", "the store is busy with a script", False),
)


async def _ask_sentinel(sentinel: RawConnection, name: str) -> tuple[str, int] | None:
    await _connect(sentinel, SENTINEL_TIMEOUT_SECONDS)
    try:
        async with asyncio.timeout(SENTINEL_TIMEOUT_SECONDS):
            await sentinel.send_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", name)
            found = await sentinel.read_response()
    except (RedisError, OSError, TimeoutError) as error:
        raise Unreachable("a sentinel of the store does not answer") from error
    finally:
        await sentinel.disconnect(nowait=True)
    return (found[0].decode(), int(found[1])) if found else None
