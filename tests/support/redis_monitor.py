"""What Redis itself saw: whose writes it took, and under which fence (`support.history`, G4).

Read from MONITOR, on a connection of its own: a script's call comes first, then what it did.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from support.history import Event
from support.pods import now
from support.redis_server import RedisServer

from diptych.adapters.redis.scripts import APPEND, APPEND_END

_APPENDS = {APPEND.sha.decode(), APPEND_END.sha.decode()}
_MARK = "Adds the next records of one run"  # in the source of both
_LINE = re.compile(rb'\+[\d.]+ \[\d+ (\S+)\] "([^"]+)" ?(.*)', re.DOTALL)
_ARGUMENT = re.compile(rb'"((?:[^"\\]|\\.)*)"')
_ASK_AT = 8  # of a script's arguments, how many are looked at


class Witness:
    """Notes claims and writes; `refused` are the calls to write that changed nothing."""

    def __init__(self, history: list[Event]) -> None:
        self.history = history
        self.refused: list[Event] = []
        self._asked: Event | None = None
        self._has_written = False

    def see(self, line: bytes) -> None:
        found = _LINE.match(line)
        if not found:
            return
        who, command, rest = found[1].decode(), found[2].decode().upper(), found[3]
        if who == "lua":
            self._see_deed(command, rest)
            return
        self._conclude()
        self._asked = _append_of(who, command, rest)

    def _see_deed(self, command: str, rest: bytes) -> None:
        names = _arguments(rest, 2)
        if command == "XADD" and self._asked:
            self._has_written = True
            self.history.append({**self._asked, "kind": "write_accepted", "seqs": names[1:2]})
        elif command == "SET" and ":fence:" in names[0]:
            session = names[0].rpartition(":fence:")[2]
            claim = {"t": now(), "actor": "redis", "kind": "claimed"}
            self.history.append({**claim, "session": session, "token": names[1]})

    def _conclude(self) -> None:
        if self._asked and not self._has_written:
            self.refused.append({**self._asked, "kind": "write_refused"})
        self._asked, self._has_written = None, False


@asynccontextmanager
async def witness(server: RedisServer, history: list[Event]) -> AsyncIterator[Witness]:
    """Watch a server while the block lasts; it must live so long."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=2**24)
    writer.write(b"MONITOR\r\n")
    assert await reader.readline() == b"+OK\r\n"
    seeing = Witness(history)

    async def watch() -> None:
        async for line in reader:
            seeing.see(line)

    task = asyncio.create_task(watch())
    try:
        yield seeing
        await asyncio.sleep(0.05)  # for what is on its way
    finally:
        task.cancel()
        await asyncio.wait([task])
        writer.close()


def _append_of(who: str, command: str, rest: bytes) -> Event | None:
    if command not in {"EVALSHA", "EVAL"}:
        return None
    script, _, _, run, session, token, *_ = [*_arguments(rest, _ASK_AT), *[""] * _ASK_AT]
    if script not in _APPENDS and _MARK not in script:
        return None
    return {"t": now(), "actor": who, "run": run, "session": session, "token": token}


def _arguments(rest: bytes, count: int) -> list[str]:
    found: list[str] = []
    for argument in _ARGUMENT.finditer(rest):
        found.append(argument[1].decode())
        if len(found) == count:
            break
    return found
