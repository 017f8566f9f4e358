"""The writes that Redis accepted, and under which fence (`support.history`, G4).

Read from MONITOR, on a connection of its own: the call of a script comes first, then its commands.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from support.history import Event
from support.pods import now
from support.redis_server import RedisServer

_LINE = re.compile(rb'\+[\d.]+ \[\d+ (\S+)\] "([^"]+)" ?(.*)', re.DOTALL)
_ARGUMENT = re.compile(rb'"((?:[^"\\]|\\.)*)"')
_MAX_ARGUMENTS = 8  # of a script's call that are read


class WriteMonitor:
    """Adds claims and writes to the history; `refused` are the appends that changed nothing."""

    def __init__(self, history: list[Event]) -> None:
        self.history = history
        self.refused: list[Event] = []
        self._append: Event | None = None
        self._has_written = False

    def read_line(self, line: bytes) -> None:
        found = _LINE.match(line)
        if not found:
            return
        client, command, rest = found[1].decode(), found[2].decode().upper(), found[3]
        if client == "lua":
            self._read_command(command, rest)
            return
        self._end_append()
        self._append = _append_event(client, command, rest)

    def _read_command(self, command: str, rest: bytes) -> None:
        names = _arguments(rest, 2)
        if command == "XADD" and self._append:
            self._has_written = True
            self.history.append({**self._append, "kind": "write_accepted", "seqs": names[1:2]})
        elif command == "SET" and ":fence:" in names[0]:
            session = names[0].rpartition(":fence:")[2]
            claim = {"t": now(), "actor": "redis", "kind": "claimed"}
            self.history.append({**claim, "session": session, "token": names[1]})

    def _end_append(self) -> None:
        if self._append and not self._has_written:
            self.refused.append({**self._append, "kind": "write_refused"})
        self._append, self._has_written = None, False


@asynccontextmanager
async def monitored(server: RedisServer, history: list[Event]) -> AsyncIterator[WriteMonitor]:
    """Monitor a server, which must not be restarted meanwhile."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=2**24)
    writer.write(b"MONITOR\r\n")
    assert await reader.readline() == b"+OK\r\n"
    monitor = WriteMonitor(history)

    async def watch() -> None:
        async for line in reader:
            monitor.read_line(line)

    task = asyncio.create_task(watch())
    try:
        yield monitor
        await asyncio.sleep(0.05)  # for lines that are on their way
    finally:
        task.cancel()
        await asyncio.wait([task])
        writer.close()


def _append_event(client: str, command: str, rest: bytes) -> Event | None:
    if command not in {"EVALSHA", "EVAL"}:
        return None
    _, _, _, method, run, session, token, *_ = [
        *_arguments(rest, _MAX_ARGUMENTS),
        *[""] * _MAX_ARGUMENTS,
    ]
    if method != "append":
        return None
    return {"t": now(), "actor": client, "run": run, "session": session, "token": token}


def _arguments(rest: bytes, count: int) -> list[str]:
    found: list[str] = []
    for argument in _ARGUMENT.finditer(rest):
        found.append(argument[1].decode())
        if len(found) == count:
            break
    return found
