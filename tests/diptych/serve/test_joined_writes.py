"""What is written to a connection in one turn of the loop is sent in one piece."""

import asyncio
from typing import Any, cast

from diptych.serve.joined_writes import JoinedWrites


class Transport:
    """Remembers what is done to it, in order."""

    def __init__(self) -> None:
        self.done: list[bytes | str] = []
        self.closing = False

    def write(self, data: bytes) -> None:
        self.done.append(data)

    def close(self) -> None:
        self.done.append("close")

    def abort(self) -> None:
        self.done.append("abort")

    def is_closing(self) -> bool:
        return self.closing

    def get_write_buffer_size(self) -> int:
        return 7


def joined() -> tuple[Any, Transport]:
    transport = Transport()
    loop = asyncio.get_running_loop()
    return JoinedWrites(cast("asyncio.Transport", transport), loop), transport


async def test_what_is_written_in_one_turn_is_sent_in_one_piece() -> None:
    joining, transport = joined()
    joining.write(b"head")
    joining.write(b"body")
    assert transport.done == []
    assert joining.get_write_buffer_size() == 7 + len(b"headbody")
    await asyncio.sleep(0)
    assert transport.done == [b"headbody"]
    assert joining.get_write_buffer_size() == 7
    joining.write(b"next")
    await asyncio.sleep(0)
    assert transport.done == [b"headbody", b"next"]


async def test_what_was_written_is_sent_before_the_end_of_the_connection() -> None:
    for end in ("close", "abort"):
        joining, transport = joined()
        joining.write(b"last")
        getattr(joining, end)()
        assert transport.done == [b"last", end]
