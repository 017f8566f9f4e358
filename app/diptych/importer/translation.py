"""Translates one object of another platform field by field, and accounts for every field."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NoReturn, TypeAlias

from diptych.core.errors import ConfigError
from diptych.manifest import API_VERSION
from diptych.manifest.documents import Document, FieldPath, dotted_path

AnyPath: TypeAlias = FieldPath | str
"""A path of fields; as a text `spec.tools.0.name`."""

_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_FORMS: Mapping[type, str] = {
    str: "a string; quote it",
    dict: "a mapping of fields",
    list: "a list",
}


class Outcome(Enum):
    """How a field was translated."""

    KEPT = "kept"
    CHANGED = "changed"
    DROPPED = "dropped"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Note:
    """How a field, or a whole object (an empty path), was translated.

    `text` is the field's new place, or the reason why it has none and what to do.
    """

    title: str
    path: FieldPath
    outcome: Outcome
    text: str


class Refused(Exception):
    """An object that cannot be made, because of one of its fields."""

    def __init__(self, source: "Source", path: FieldPath, why: str) -> None:
        super().__init__(why)
        self.note = Note(source.title, path, Outcome.REFUSED, why)


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """An object to import."""

    document: Document

    @property
    def group(self) -> str:
        return str(self.document.content.get("apiVersion")).partition("/")[0]

    @property
    def kind(self) -> str:
        return str(self.document.content.get("kind"))

    @property
    def full_name(self) -> tuple[str, str]:
        """The namespace, "" if there is none, and the name."""
        metadata = self.document.content.get("metadata")
        metadata = metadata if isinstance(metadata, dict) else {}
        return str(metadata.get("namespace", "")), str(metadata.get("name", ""))

    @property
    def title(self) -> str:
        return f"{self.kind} {'/'.join(filter(None, self.full_name))}"


class Translation:
    """Moves the fields of a source into an object of ours.

    `take` reads a field; the next `put` or `add` notes where it went. `finish` drops, with a note,
    what is left. Values of a wrong form raise `ConfigError` with file, line and field. `done` maps
    fields to their new places, None for those that were dropped.
    """

    def __init__(self, source: Source, kind: str) -> None:
        """Begin an object of a kind with the source's metadata."""
        self.source = source
        self.notes: list[Note] = []
        self.comments: list[tuple[FieldPath, str]] = []
        self.content: dict[str, Any] = {"apiVersion": API_VERSION, "kind": kind, "metadata": {}}
        self.done: dict[FieldPath, FieldPath | None] = {}
        self.taken: list[FieldPath] = []
        self.require("metadata.name")
        for part in ("name", "namespace", "labels"):
            self.move(f"metadata.{part}", f"metadata.{part}")
        annotations = "metadata.annotations"
        self.move(
            annotations, annotations, lambda own: {k: v for k, v in own.items() if k != _APPLIED}
        )
        self.mapping("spec") or self.fail("spec", "is required")
        self.spec: dict[str, Any] = self.content.setdefault("spec", {})

    def peek(self, path: AnyPath) -> Any:  # noqa: ANN401 - of any field
        """Return a field's value; None if it is absent."""
        value: Any = self.source.document.content
        for depth, part in enumerate(parts := place(path)):
            if value is None:
                return None
            self._check(parts[:depth], value, list if isinstance(part, int) else dict)
            value = next(iter(value[part:]), None) if isinstance(part, int) else value.get(part)
        return value

    def text(self, path: AnyPath) -> str:
        """Return a text; "" if it is absent."""
        return self._check(place(path), self.peek(path), str) or ""

    def mapping(self, path: AnyPath) -> dict[str, Any]:
        """Return a mapping; an empty one if it is absent."""
        return self._check(place(path), self.peek(path), dict) or {}

    def items(self, path: AnyPath) -> list[FieldPath]:
        """Return the paths of a list's items."""
        value = self._check(place(path), self.peek(path), list)
        return [(*place(path), number) for number in range(len(value or ()))]

    def require(self, path: AnyPath) -> str:
        """Return a text that must be there."""
        return self.text(path) or self.fail(path, "is required")

    def take(self, path: AnyPath) -> Any:  # noqa: ANN401 - of any field
        """Return a field's value for what is written next."""
        value = self.peek(path)
        if value is not None:
            self.taken.append(place(path))
        return value

    def take_one_of(self, path: AnyPath, *values: str) -> str:
        """Take a text that is one of these; the first if it is absent."""
        text = self.text(path) or values[0]
        if text not in values:
            self.fail(path, f"must be one of {', '.join(values)}")
        self.take(path)
        return text

    def put(self, to: str, value: Any, why: str = "", *, is_kept: bool = True) -> None:  # noqa: ANN401
        """Write a field, made of what was taken."""
        outer, last = self._outer(to)
        outer[last] = value
        self._note(place(to), why, is_kept=is_kept)

    def add(self, to: str, value: Any, why: str = "") -> None:  # noqa: ANN401 - of any field
        """Append to a list a value made of what was taken."""
        outer, last = self._outer(to)
        outer.setdefault(last, []).append(value)
        self._note((*place(to), len(outer[last]) - 1), why)

    def move(
        self, path: AnyPath, to: str, change: Callable[[Any], Any] | None = None, why: str = ""
    ) -> None:
        """Move a field, if it is there; `change` makes its new value."""
        if (value := self.peek(path)) is None:
            return
        try:
            changed = value if change is None else change(value)
        except (TypeError, ValueError, AttributeError):
            self.fail(path, "has a form that cannot be read")
        self.take(path)
        self.put(to, changed, why, is_kept=changed == value)

    def move_all(self, fields: Mapping[str, str], root: str) -> None:
        """Move several fields of a mapping."""
        for name, to in fields.items():
            self.move(f"{root}.{name}", to)

    def drop(self, path: AnyPath, why: str) -> None:
        """Leave out what is there of a field and has not been taken."""
        for rest in list(self._rest(place(path))):
            self.done[rest] = None
            self.notes.append(Note(self.source.title, rest, Outcome.DROPPED, why))
            self.comments.append((self._beside(rest), f"{dotted_path(rest)}: {why}"))

    def drop_all(self, fields: Mapping[str, str], root: str = "spec") -> None:
        """Leave out several fields of a mapping, each with its reason."""
        for name, why in fields.items():
            self.drop(f"{root}.{name}", why)

    def refuse(self, path: AnyPath, why: str) -> NoReturn:
        """Refuse the object because of a field."""
        raise Refused(self.source, place(path), why)

    def fail(self, path: AnyPath, problem: str) -> NoReturn:
        """Raise the error of a field."""
        raise ConfigError(f"{self.source.document.location.locate(place(path))}: {problem}")

    def finish(self) -> "Translation":
        """Drop, with a note, every field that nothing has accounted for."""
        for name in self.source.document.content:
            if name not in ("apiVersion", "kind", "metadata", "status"):
                self.drop((name,), "it has no equal here")
        return self

    def _check(self, path: FieldPath, value: Any, kind: type) -> Any:  # noqa: ANN401 - of any field
        if value is not None and not isinstance(value, kind):
            self.fail(path, f"must be {_FORMS[kind]}")
        return value

    def _outer(self, to: str) -> tuple[Any, str | int]:
        inner: Any = self.content
        *outer, last = place(to)
        for part in outer:
            inner = inner[part] if isinstance(part, int) else inner.setdefault(part, {})
        return inner, last

    def _note(self, to: FieldPath, why: str, *, is_kept: bool = True) -> None:
        outcome = Outcome.KEPT if is_kept and not why else Outcome.CHANGED
        text = f"{dotted_path(to)}: {why}" if why else dotted_path(to)
        for path in self.taken:
            self.done[path] = to
            self.notes.append(Note(self.source.title, path, outcome, text))
        self.taken.clear()

    def _rest(self, path: FieldPath) -> Iterator[FieldPath]:
        """Find the largest parts of a field that are not accounted for."""
        value = self.peek(path)
        if value in (None, "", [], {}) or any(
            path[:length] in self.done for length in range(1, len(path) + 1)
        ):
            return
        if not any(done[: len(path)] == path for done in self.done):
            yield path
            return
        for part in value if isinstance(value, dict) else range(len(value)):
            yield from self._rest((*path, part))

    def _beside(self, path: FieldPath) -> FieldPath:
        """Return the field of ours whose origin is next to a field of the source."""
        for length in range(len(path) - 1, 1, -1):
            for done, to in self.done.items():
                if to and done[:length] == path[:length]:
                    return to
        return ("spec",)


def place(path: AnyPath) -> FieldPath:
    """Read a path."""
    if isinstance(path, tuple):
        return path
    return tuple(int(part) if part.isdigit() else part for part in path.split("."))
