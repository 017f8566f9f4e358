"""Reads the events of a run from bytes, as they come off the network.

To the letter of the WHATWG HTML standard, section 9.2.6, because one goes on by what it says: the
last id stays until another one comes, and an empty one takes it back.

Not here: connections (`remote`), what the events mean (`remote`). `retry:` is left out: we wait as
long as we see fit.
"""

from collections.abc import Iterator
from dataclasses import dataclass

MEBIBYTE = 1024 * 1024
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class EventTooLong(ValueError):
    """A line, or the data of one event, is longer than the limit."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One event: its name (`message` if it has none), its data, and the last id heard with it."""

    event: str
    data: bytes
    last_id: str


class EventStream:
    """Turns chunks of bytes into whole events; a chunk may end anywhere. `limit` is in bytes.

    `last_id` is what a later connection sends as `Last-Event-ID`; give the one to begin with.
    """

    def __init__(self, last_id: str = "", limit: int = 8 * MEBIBYTE) -> None:
        self.last_id = last_id
        self._limit = limit
        self._rest = b""
        self._heard_id = last_id  # becomes `last_id` when its event is whole
        self._event = ""
        self._data: list[bytes] = []
        self._size = 0
        self._at_start = True
        self._after_cr = False

    def feed(self, chunk: bytes) -> list[Frame]:
        """Take the next bytes; give the events that they complete. Raises `EventTooLong`."""
        frames = []
        for line in self._lines(chunk):
            if line:
                self._read_field(line)
            elif (frame := self._whole()) is not None:
                frames.append(frame)
        return frames

    def _lines(self, chunk: bytes) -> Iterator[bytes]:
        """Give the lines that have ended: with LF, CRLF or CR."""
        if not chunk:
            return
        if self._after_cr:
            chunk = chunk.removeprefix(b"\n")  # the second half of a CRLF; the first was enough
        text = self._rest + chunk
        if self._at_start:
            if len(text) < len(_BYTE_ORDER_MARK) and _BYTE_ORDER_MARK.startswith(text):
                self._rest = text
                return
            self._at_start = False
            text = text.removeprefix(_BYTE_ORDER_MARK)
        self._after_cr = text.endswith(b"\r")
        *lines, self._rest = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        if len(self._rest) > self._limit:
            raise EventTooLong
        yield from lines

    def _read_field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        match name:
            case b"data":
                self._data.append(value)
                self._size += len(value) + 1
                if self._size > self._limit:
                    raise EventTooLong
            case b"event":
                self._event = value.decode(errors="replace")
            case b"id" if b"\0" not in value:
                self._heard_id = value.decode(errors="replace")

    def _whole(self) -> Frame | None:
        """End an event; None if it holds no data, as a lone id or a comment."""
        self.last_id = self._heard_id
        event, data = self._event or "message", b"\n".join(self._data)
        is_event = bool(self._data)
        self._event, self._size = "", 0
        self._data.clear()
        return Frame(event, data, self.last_id) if is_event else None
