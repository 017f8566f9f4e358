"""Assembles the native tool calls of a reply, from whole messages and from streamed deltas.

Pure. Servers differ in every field. Indexes are missing or always 0. Ids are missing, repeated, or
new in each chunk. Names come once, in every chunk, or in pieces. Arguments come as pieces of text,
as whole text, or as an object. `tests/support/upstream_habits` lists each habit and its source.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from diptych.core.messages import NativeCall
from diptych.core.text import well_formed

MAX_EXTRA_BYTES = 256 * 1024  # of `extra_content`, which is kept with a call
_SLOT_SIZE = 1024  # overhead of a call in characters
_LEGACY_INDEX = -1  # of `function_call`, the API before tools


@dataclass(slots=True)
class _Slot:
    """A call under assembly."""

    index: int | None
    id: str = ""
    name: str = ""
    arguments: str = ""
    extra: Mapping[str, Any] | None = None

    @property
    def size(self) -> int:
        return len(self.id) + len(self.name) + len(self.arguments)

    @property
    def is_complete(self) -> bool:
        """Whether the arguments are a complete JSON object or list."""
        return self.arguments.lstrip()[:1] in {"{", "["} and _is_json(self.arguments)


class CallAssembler:
    """Collects the calls of one reply. `names` are the functions that the request offers."""

    def __init__(self, names: frozenset[str] = frozenset()) -> None:
        self._names = names
        self._slots: list[_Slot] = []
        self._size = 0

    @property
    def size(self) -> int:
        """The total size of the calls in characters, with an overhead for each."""
        return self._size + _SLOT_SIZE * len(self._slots)

    @property
    def newest_arguments(self) -> str:
        """The arguments, so far, of the newest call."""
        return self._slots[-1].arguments if self._slots else ""

    def add_whole(self, message: Mapping[str, Any]) -> None:
        """Add the calls of a whole message: each entry is one call, whatever its index."""
        for entry in _entries(message):
            self._slots.append(_Slot(None))
            self._fill(self._slots[-1], entry)
        self._add_legacy(message)

    def add_delta(self, delta: Mapping[str, Any]) -> None:
        """Add the call fragments of one streamed delta."""
        entries = _entries(delta)
        for position, entry in enumerate(entries):
            self._fill(self._slot_for(entry, position, len(entries)), entry)
        self._add_legacy(delta)

    def calls(self) -> tuple[NativeCall, ...]:
        """Return the calls in order, each with an id unique in the reply."""
        slots = [slot for n, slot in enumerate(self._slots) if self._is_call(n, slot)]
        taken = {slot.id for slot in slots}
        given: set[str] = set()
        calls = []
        for number, slot in enumerate(slots, start=1):
            call_id = slot.id
            if not call_id or call_id in given:
                call_id = _free_id(number, taken | given)
            given.add(call_id)
            arguments = well_formed(slot.arguments) if slot.arguments.strip() else "{}"
            name = well_formed(slot.name)
            calls.append(NativeCall(well_formed(call_id), name, arguments, slot.extra))
        return tuple(calls)

    def _is_call(self, position: int, slot: _Slot) -> bool:
        """Whether a slot is a call, rather than the empty last chunk of the previous one.

        Servers that repeat the name, with a new id, in each chunk end a call with such a chunk.
        """
        if slot.arguments or not slot.name or not position:
            return bool(slot.name or slot.arguments)
        before = self._slots[position - 1]
        return (before.index, before.name) != (slot.index, slot.name) or not before.arguments

    def _add_legacy(self, message: Mapping[str, Any]) -> None:
        call = message.get("function_call")
        if isinstance(call, dict) and not message.get("tool_calls"):
            if not self._slots or self._slots[-1].index != _LEGACY_INDEX:
                self._slots.append(_Slot(_LEGACY_INDEX))
            self._fill(self._slots[-1], {"function": call})

    def _slot_for(self, entry: Mapping[str, Any], position: int, together: int) -> _Slot:
        """Return the call that a delta belongs to, or start another."""
        index = entry.get("index")
        if type(index) is not int or index < 0:
            index = None
        current = self._current(index, entry, position, together)
        if current is None:
            self._slots.append(_Slot(index))
        elif _begins_another(current, entry, is_alone=together == 1):
            # Calls that start together under one index get their later deltas by position.
            self._slots.append(_Slot(index if together == 1 else position))
        else:
            return current
        return self._slots[-1]

    def _current(
        self, index: int | None, entry: Mapping[str, Any], position: int, together: int
    ) -> _Slot | None:
        """Find the call that a delta continues; the id takes precedence over the index.

        A new index without a name is ignored: some servers renumber the later deltas of a call.
        """
        call_id, is_nameless = _text(entry.get("id")), not _name(entry)
        known = next((s for s in self._slots if s.id == call_id), None) if call_id else None
        if known and (is_nameless or index in (None, known.index)):
            return known
        if index is not None:
            found = next((s for s in reversed(self._slots) if s.index == index), None)
            if found or not is_nameless or call_id or not self._slots:
                return found
            last = self._slots[-1]
            return None if last.is_complete else last
        if together > 1:  # several in one chunk, without indexes: positions serve as indexes
            return self._slots[position] if position < len(self._slots) else None
        return self._slots[-1] if self._slots else None

    def _fill(self, slot: _Slot, entry: Mapping[str, Any]) -> None:
        before = slot.size
        slot.id = slot.id or _text(entry.get("id"))
        if not slot.extra and (extra := _extra(entry.get("extra_content"))):
            slot.extra = extra
            self._size += len(orjson.dumps(extra))
        function = _function(entry)
        self._fill_name(slot, _name(entry))
        arguments = function.get("arguments", function.get("parameters"))
        if isinstance(arguments, str):
            if slot.arguments == "{}" and arguments[:1] == "{":
                slot.arguments = ""  # it was the first chunk's placeholder
            slot.arguments += arguments
        elif isinstance(arguments, dict | list) and not slot.is_complete:
            slot.arguments = orjson.dumps(arguments).decode()
        self._size += slot.size - before

    def _fill_name(self, slot: _Slot, piece: str) -> None:
        """Append a piece of the name, unless it repeats the whole name."""
        joined = slot.name + piece
        if joined in self._names or not slot.name:
            slot.name = joined
        elif piece.startswith(slot.name):  # the whole name again, or after its first piece
            slot.name = piece
        elif slot.name not in self._names and not slot.arguments:
            slot.name = joined


def _entries(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    entries = message.get("tool_calls")
    if isinstance(entries, dict):
        entries = [entries]
    return [e for e in entries if isinstance(e, dict)] if isinstance(entries, list) else []


def _function(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    function = entry.get("function")
    return function if isinstance(function, dict) else entry  # some gateways omit the object


def _name(entry: Mapping[str, Any]) -> str:
    return _text(_function(entry).get("name"))


def _begins_another(current: _Slot, entry: Mapping[str, Any], *, is_alone: bool) -> bool:
    """Whether a delta starts another call, although its index matches `current` or is missing.

    Parallel calls under one index differ in their ids, or start once the previous arguments are
    complete. A new id alone proves nothing: some servers give each chunk a new id, though not each
    of several entries in one chunk.
    """
    function, name = _function(entry), _name(entry)
    call_id = _text(entry.get("id"))
    if not name:
        return False
    is_other_id = bool(call_id and current.id and call_id != current.id)
    if current.is_complete:
        return is_other_id or name != current.name or _has_arguments(function)
    is_other_name = bool(current.name) and not name.startswith(current.name)
    return is_other_id and not current.arguments and (is_other_name or not is_alone)


def _has_arguments(function: Mapping[str, Any]) -> bool:
    arguments = function.get("arguments")
    return isinstance(arguments, dict) or (isinstance(arguments, str) and bool(arguments.strip()))


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    return str(value) if type(value) is int else ""


def _extra(found: object) -> Mapping[str, Any] | None:
    """Return the `extra_content` to send back, unless it is too large or not encodable."""
    if not isinstance(found, dict) or not found:
        return None
    try:
        return found if len(orjson.dumps(found)) <= MAX_EXTRA_BYTES else None
    except TypeError:  # a lone surrogate
        return None


def _free_id(number: int, taken: set[str]) -> str:
    """Make an id that every server accepts: Mistral requires nine letters and digits."""
    while (call_id := f"call{number:05d}") in taken:
        number += 1
    return call_id


def _is_json(text: str) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True
