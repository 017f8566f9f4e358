"""Reads server-sent events from bytes, as they come off the network.

Not here: connections, timeouts, and what the events mean. `event:`, `id:` and `retry:` are skipped:
the chat completions API says everything in `data:`.
"""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
MEBIBYTE = 1024 * 1024


class SseTooLong(ValueError):
    """A line, or the data of one event, is longer than the reader's limit."""


class SseReader:
    """Turns chunks of bytes into the data of whole events.

    Follows the WHATWG HTML standard, section 9.2.6: lines end with LF, CRLF or CR, one byte order
    mark may come first, comments are skipped, several `data:` lines are joined with LF. Stays with
    bytes, so a chunk may end inside a character. `limit` is in bytes.
    """

    def __init__(self, limit: int = MEBIBYTE) -> None:
        self._limit = limit
        self._partial: list[bytes] = []  # the line that has not ended, in pieces
        self._partial_size = 0
        self._data: list[bytes] = []  # the `data:` lines of the event that has not ended
        self._data_size = 0
        self._after_cr = False
        self._at_start = True

    def feed(self, chunk: bytes) -> list[bytes]:
        """Take the next bytes; give the data of each event that they complete.

        Raises `SseTooLong`.
        """
        if self._after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]  # the second half of a CRLF; the first has ended the line
        elif not chunk:
            return []
        self._after_cr = chunk.endswith(b"\r")
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        whole, newline, rest = chunk.rpartition(b"\n")
        if not newline:
            self._keep(rest)
            return []
        if self._partial:
            whole = b"".join((*self._partial, whole))
            self._partial.clear()
            self._partial_size = 0
        if rest:
            self._keep(rest)
        if self._at_start:
            self._at_start = False
            whole = whole.removeprefix(_BYTE_ORDER_MARK)
        return self._events(whole.split(b"\n"))

    def finish(self) -> bytes | None:
        """Give the data of the event that the stream ended in, if any.

        The standard drops it; several model servers leave out the last blank line.
        """
        events = self.feed(b"\n\n")
        return events[0] if events else None

    def _keep(self, piece: bytes) -> None:
        self._partial.append(piece)
        self._partial_size += len(piece)
        if self._partial_size > self._limit:
            raise SseTooLong

    def _events(self, lines: list[bytes]) -> list[bytes]:
        events = []
        for line in lines:
            if line.startswith(b"data: "):
                self._add(line[6:])
            elif line.startswith(b"data:"):
                self._add(line[5:])
            elif line == b"data":
                self._add(b"")
            elif not line and self._data:
                events.append(b"\n".join(self._data))
                self._data.clear()
                self._data_size = 0
        return [event for event in events if event]

    def _add(self, value: bytes) -> None:
        self._data.append(value)
        self._data_size += len(value) + 1
        if self._data_size > self._limit:
            raise SseTooLong
