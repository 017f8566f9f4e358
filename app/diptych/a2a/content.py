"""What the parts of a message or an artifact of another agent say."""

import json
from collections.abc import Iterable, Sequence

from a2a.types import Message, Part, Role
from google.protobuf.json_format import MessageToDict

from diptych.a2a.amounts import with_integers
from diptych.core.messages import JSON, FinishReason

MAX_ANSWER_CHARS = 4 * 2**20  # kept of one artifact or message; the runner cuts the result further


class Content:
    """The parts of one artifact or message, each text on a line of its own.

    What is added later, pieces of a streamed text, is joined as it is.
    In `text` the values of data parts stand below what was said, as JSON; `value` is the last one.
    """

    def __init__(self) -> None:
        self.value: JSON = None
        self.finish_reason: FinishReason = "stop"
        self._texts: list[str] = []
        self._values: list[JSON] = []
        self.size = 0  # of all texts and values, in characters

    @property
    def text(self) -> str:
        said = "".join(self._texts)
        if not self._values or _is_written_out(said, self._values):
            return said
        return "\n".join(filter(None, (said, *map(_as_text, self._values))))

    def add(self, parts: Iterable[Part], *, as_pieces: bool = False) -> str:
        """Add parts, up to the limit; return the added text, without the values.

        With `as_pieces` the parts may be those of a streamed text, each as it came.
        """
        new: list[str] = []
        for part in parts:
            if part.HasField("data"):
                self._add_value(with_integers(MessageToDict(part.data)))
            elif (text := _part_text(part)) and self.size <= MAX_ANSWER_CHARS:
                before = "".join(self._texts[-1:] + new[-1:])[-1:]
                is_file = not part.HasField("text")
                if (is_file and before.strip()) or (new and not as_pieces and before != "\n"):
                    text = f"\n{text}"
                self.size += len(text)
                new.append(text)
        self._texts += new
        return "".join(new)

    def _add_value(self, value: JSON) -> None:
        """Keep a value; the last one is what other calls can refer to."""
        self.value = value
        size = len(_as_text(value))
        if value is not None and (not self._values or self.size + size <= MAX_ANSWER_CHARS):
            self.size += size
            self._values.append(value)


def _as_text(value: JSON) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def _is_written_out(text: str, values: Sequence[JSON]) -> bool:
    """Whether a text is JSON of the type of the one value beside it, as our own agents write it.

    The two are not compared further: the numbers of a value are doubles, those of a text are exact.
    """
    if len(values) > 1 or not text:
        return False
    try:
        return isinstance(json.loads(text), type(values[0]))
    except (ValueError, RecursionError):
        return False


def last_words(history: Iterable[Message]) -> str:
    """Give what an agent said last to the task, as long as nobody has answered it.

    Agents that are not streamed may leave their answer there alone (Microsoft's Agent Framework).
    """
    words = ""
    for message in history:
        is_agent = message.role == Role.ROLE_AGENT
        words = (content_of(message.parts).text or words) if is_agent else ""
    return words


def content_of(parts: Iterable[Part]) -> Content:
    """Read the parts of one message."""
    content = Content()
    content.add(parts)
    return content


def _part_text(part: Part) -> str:
    match part.WhichOneof("content"):
        case "text":
            return str(part.text)
        case "url":
            return f"[{part.filename or 'a file'}: {part.url}]"
        case "raw":
            return f"[{part.filename or 'a file'} of {len(part.raw)} bytes, not shown]"
        case _:
            return ""
