"""Reads YAML files into plain values, within bounds, and names the lines of mistakes."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import yaml

from diptych.core.errors import ConfigError
from diptych.manifest.fields import DNS_LABEL
from diptych.manifest.scalars import resolve_scalar
from diptych.manifest.source_location import node_at

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 64
MAX_VALUES = 50_000

_PARSER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times faster, where it is built
_MERGE = "<<"
_PLAIN = "!plain"
"""The tag of scalars whose text decides what they are."""
_STRING = "tag:yaml.org,2002:str"
_TAGS = {_PLAIN, *(f"tag:yaml.org,2002:{tag}" for tag in ("str", "map", "seq", "merge"))}
_FIELD = re.compile(r"(\s*(?:- +)*([\w-]+): +)([^}\],].*)")
_NAMES = re.compile(r"([\w-]+):")
_STAR = re.compile(r"(?<=[\s\[{,])\*[\w*-]*")
_SHOWN = {"description", "instructions", "reason", "when", "name", "match", "tool", "agent"}
_SHOWN |= {"allow", "overrides", "policy", "do"}
"""Fields whose values are repeated in errors: no secrets."""
_START_EVENTS = (yaml.MappingStartEvent, yaml.SequenceStartEvent)
_END_EVENTS = (yaml.MappingEndEvent, yaml.SequenceEndEvent)


class _Loader(_PARSER):  # type: ignore[misc]
    """Makes of plain scalars what kubectl makes of them."""

    def resolve(self, kind: type[yaml.Node], value: str, implicit: tuple[bool, bool]) -> str:
        if kind is yaml.ScalarNode and implicit[0] and value != _MERGE:
            return _PLAIN
        tag: str = super().resolve(kind, value, implicit)
        return tag


_Loader.add_constructor(_PLAIN, lambda _, node: resolve_scalar(node.value))


@dataclass(frozen=True, slots=True)
class Document:
    """One YAML document. `source` is its file, and its number and name if the file has several.

    `node` is what the content was made of: it knows the lines.
    """

    source: str
    content: dict[str, Any]
    node: yaml.Node | None = field(default=None, compare=False, repr=False)


def read_text(path: Path) -> str:
    """Read a file of 1 MiB at most as UTF-8. Raises `ConfigError` with one line."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except IsADirectoryError:
        _fail(path, "is a directory; name the files in it")
    except FileNotFoundError:
        _fail(path, "there is no such file")
    except OSError as error:
        _fail(path, f"cannot be read: {error.strerror}")
    if len(raw) > MAX_BYTES:
        _fail(path, "is larger than 1 MiB")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        _fail(path, f"line {line}: is not UTF-8 text; save the file as UTF-8")


def read_documents(path: Path) -> tuple[Document, ...]:
    """Read all documents of a file that are not empty. Raises `ConfigError` with one line."""
    return parse_documents(path, read_text(path))


def parse_documents(path: Path, text: str) -> tuple[Document, ...]:
    """Read documents from a file's text. Raises `ConfigError` with one line."""
    values = [loaded for loaded in _load(path, text) if loaded[1] is not None]
    if not values:
        _fail(path, "is empty")
    documents: list[Document] = []
    for number, (node, value) in enumerate(values, start=1):
        source = f"{path}: document {number}" if len(values) > 1 else str(path)
        if not isinstance(value, dict):
            raise ConfigError(f"{source}: must be a mapping of fields")
        metadata = value.get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else None
        if len(values) > 1 and isinstance(name, str) and DNS_LABEL.fullmatch(name):
            source += f" ({name})"
        documents += _items(Document(source, value, node))
    return tuple(documents)


def _items(document: Document) -> Iterator[Document]:
    """Give what a List holds, as `kubectl get -o yaml` writes it; any other document is itself."""
    items = document.content.get("items")
    if document.content.get("kind") != "List" or not isinstance(items, list):
        yield document
        return
    for number, item in enumerate(items, start=1):
        source = f"{document.source}: item {number}"
        if not isinstance(item, dict):
            raise ConfigError(f"{source}: must be a mapping of fields")
        yield Document(
            source, item, document.node and node_at(document.node, ("items", number - 1))
        )


def _load(path: Path, text: str) -> list[tuple[yaml.Node, Any]]:
    loader = None
    try:
        _check_depth(path, text)  # a deeper nesting would overflow the composer's stack
        loader = _Loader(text)
        values = []
        while loader.check_node():
            node = loader.get_node()
            _NodeCheck(path).count(node)
            values.append((node, loader.construct_document(node)))
    except yaml.reader.ReaderError:
        _fail(path, "holds characters that YAML does not allow")
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        if mark and (line := _quoted(text, mark.line)):
            _fail(path, f"{where}quote the text: {line}")
        hint = '; quote a text that holds ": "' if "mapping values" in str(error.problem) else ""
        _fail(path, f"{where}is not valid YAML: {error.problem or error.context}{hint}")
    else:
        return values
    finally:
        if loader is not None:
            loader.dispose()


def _quoted(text: str, number: int) -> str | None:
    """Write a line with its text in quotes, if it can be read then."""
    lines = text.split("\n")
    line = lines[number].rstrip() if number < len(lines) else ""
    if not (found := _FIELD.fullmatch(line)):
        return None
    start, name, value = found.groups()
    is_flow = value[0] in "[{"
    fixed = _STAR.sub(r'"\g<0>"', line) if is_flow else start + _quotes(value)
    lines[number] = fixed
    try:
        list(_events("\n".join(lines)))
    except yaml.MarkedYAMLError as error:
        if not error.problem_mark or error.problem_mark.line <= number:
            return None
    is_shown = _SHOWN.issuperset(_NAMES.findall(fixed) if is_flow else [name])
    return (fixed if is_shown else f'{start}"…"').strip()


def _quotes(text: str) -> str:
    return f'"{text}"' if not {'"', "\\"} & set(text) else "'" + text.replace("'", "''") + "'"


def _check_depth(path: Path, text: str) -> None:
    depth = 0
    for event in _events(text):
        depth += isinstance(event, _START_EVENTS)
        depth -= isinstance(event, _END_EVENTS)
        if depth > MAX_DEPTH:
            _fail(path, f"nests more than {MAX_DEPTH} levels deep")


def _events(text: str) -> Iterator[yaml.Event]:
    yield from yaml.parse(text, Loader=_PARSER)


class _NodeCheck:
    """Refuses what YAML allows and we do not, before a document's values are made."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sizes: dict[int, int] = {}

    def count(self, node: yaml.Node) -> int:
        """Count a node's values, with aliases expanded: a small file can hold billions."""
        if id(node) in self.sizes:
            size = self.sizes[id(node)]
            if size == 0:
                self._fail(node, "an alias stands inside what it is an alias of")
            return size
        self.sizes[id(node)] = 0
        self._value(node)
        size = 1 + sum(self.count(child) for child in self._children(node))
        if size > MAX_VALUES:
            self._fail(node, "holds too many values; use fewer aliases")
        self.sizes[id(node)] = size
        return size

    def _children(self, node: yaml.Node) -> Iterator[yaml.Node]:
        if isinstance(node, yaml.SequenceNode):
            yield from node.value
        elif isinstance(node, yaml.MappingNode):
            seen = set()
            for key, value in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    self._fail(key, "a field's name must be plain text")
                self._name(key)
                if key.value in seen:
                    self._fail(key, f'the field "{key.value[:64]}" stands twice; remove one')
                seen.add(key.value)
                if key.value == "hooks" and isinstance(value, yaml.SequenceNode):
                    _keep_on(value)
                yield value

    def _value(self, node: yaml.Node) -> str | float | None:
        """Return a scalar's value; refuse tags, and numbers that JSON lacks."""
        if node.tag not in _TAGS:
            tag = node.tag.replace("tag:yaml.org,2002:", "!!")[:64]
            self._fail(node, f"{tag} is read as a tag of YAML; quote the text, or remove the tag")
        try:
            return resolve_scalar(node.value) if node.tag == _PLAIN else ""
        except ValueError:
            self._fail(node, f"JSON has no number {node.value}; quote it if it is text")

    def _name(self, key: yaml.ScalarNode) -> None:
        """Make a field's name text; refuse one that kubectl would change."""
        read_as = self._value(key)
        text = read_as if isinstance(read_as, str) else json.dumps(read_as)
        if read_as is None or (text != key.value and key.tag == _PLAIN):
            self._fail(key, f'kubectl reads the name "{key.value}" as {text}; quote it')
        key.tag = _STRING if key.tag == _PLAIN else key.tag

    def _fail(self, node: yaml.Node, message: str) -> NoReturn:
        _fail(self.path, f"line {node.start_mark.line + 1}: {message}")


def _keep_on(hooks: yaml.SequenceNode) -> None:
    """Keep `on` of hooks as it is written: see `hook_points`."""
    for hook in hooks.value:
        for key, _ in hook.value if isinstance(hook, yaml.MappingNode) else ():
            if key.value == "on":
                key.tag = _STRING


def _fail(path: Path, message: str) -> NoReturn:
    raise ConfigError(f"{path}: {message}")
