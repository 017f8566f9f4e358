"""Server-sent events (WHATWG HTML, section 9.2): encodes events, and parses streams. Pure."""

from typing import TypeAlias

import orjson

MEBIBYTE = 1024 * 1024
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def frame(payload: object, *, event: str | None = None, seq: int | None = None) -> bytes:
    """Encode one event with `payload` as JSON data; `seq` becomes its `id`."""
    head = b""
    if event is not None:
        head += b"event: %b\n" % event.encode()
    if seq is not None:
        head += b"id: %d\n" % seq
    return b"%bdata: %b\n\n" % (head, orjson.dumps(payload))


class SseTooLong(ValueError):
    """An event exceeds the parser's limit."""


SseEvent: TypeAlias = tuple[str, bytes, str]
"""An event's type (default `message`), its data, and the last id so far.

A plain tuple, since a named tuple would double the cost of parsing.
"""


class SseParser:
    """Parses chunks of bytes into events (section 9.2.6); chunks may end anywhere.

    Lines end with LF, CRLF or CR. A leading byte order mark and comments are skipped, and several
    `data:` lines are joined with LF. Data stays bytes, so a chunk may end inside a character.
    `limit` is the maximum size of an event in bytes. `last_id` is the last id of an earlier
    connection.
    """

    def __init__(self, last_id: str = "", limit: int = MEBIBYTE) -> None:
        self.last_id = last_id
        self._limit = limit
        self._pending: list[bytes] = []  # pieces of the unfinished event
        self._pending_size = 0
        self._ends_line = False  # whether the pending pieces end with LF
        self._after_cr = False
        self._at_start = True

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """Add a chunk; return the events that it completes. Raises `SseTooLong`."""
        if b"\r" in chunk or (self._after_cr and chunk):
            chunk = self._with_lf(chunk)
        if self._pending:
            if b"\n\n" not in chunk and not (self._ends_line and chunk.startswith(b"\n")):
                self._keep(chunk)
                return []
            chunk = b"".join((*self._pending, chunk))
            self._pending.clear()
            self._pending_size = 0
        whole, found, rest = chunk.rpartition(b"\n\n")
        self._keep(rest)
        if not found:
            return []
        if self._at_start:
            self._at_start = False
            whole = whole.removeprefix(_BYTE_ORDER_MARK)
        return self._parse(whole)

    def finish(self) -> list[SseEvent]:
        """Return the unfinished event at the end of the stream, if any. Raises `SseTooLong`.

        The standard drops it, but several model servers omit the last blank line.
        """
        return self.feed(b"\n\n")

    def _with_lf(self, chunk: bytes) -> bytes:
        if self._after_cr:
            chunk = chunk.removeprefix(b"\n")  # the second half of a CRLF; the first ended the line
        self._after_cr = chunk.endswith(b"\r")
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _keep(self, piece: bytes) -> None:
        if not piece:
            return
        self._pending.append(piece)
        self._pending_size += len(piece)
        self._ends_line = piece.endswith(b"\n")
        if self._pending_size > self._limit:
            raise SseTooLong

    def _parse(self, whole: bytes) -> list[SseEvent]:
        """Parse complete events, without the blank line after the last one."""
        is_large = len(whole) > self._limit
        if whole.startswith(b"data: ") and not is_large:
            datas = whole[6:].split(b"\n\ndata: ")
            if whole.count(b"\n") == 2 * (len(datas) - 1):  # only one-line events, as from models
                last_id = self.last_id
                return [("message", data, last_id) for data in datas]
        blocks = whole.split(b"\n\n")
        if is_large and max(map(len, blocks)) > self._limit:
            raise SseTooLong
        return list(filter(None, map(self._parse_lines, blocks)))

    def _parse_lines(self, block: bytes) -> SseEvent | None:
        """Parse the lines of one event; None if it has no data."""
        event = ""
        data: list[bytes] = []
        for line in block.split(b"\n"):
            name, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if name == b"data":
                data.append(value)
            elif name == b"event":
                event = value.decode(errors="replace")
            elif name == b"id" and b"\0" not in value:
                self.last_id = value.decode(errors="replace")
        return (event or "message", b"\n".join(data), self.last_id) if data else None
