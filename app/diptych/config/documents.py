"""Reads YAML files into plain values, within bounds, and names the lines of mistakes."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import yaml

from diptych.config.manifest.field_types import DNS_LABEL
from diptych.errors import ConfigError

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 64
MAX_VALUES = 50_000

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times faster, where it is built
_START_EVENTS = (yaml.MappingStartEvent, yaml.SequenceStartEvent)
_END_EVENTS = (yaml.MappingEndEvent, yaml.SequenceEndEvent)


@dataclass(frozen=True, slots=True)
class Document:
    """One YAML document. `source` is its file, and its number and name if the file has several."""

    source: str
    content: dict[str, Any]


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
    values = [value for value in _load(path, text) if value is not None]
    if not values:
        _fail(path, "is empty")
    documents: list[Document] = []
    for number, value in enumerate(values, start=1):
        source = f"{path}: document {number}" if len(values) > 1 else str(path)
        if not isinstance(value, dict):
            raise ConfigError(f"{source}: must be a mapping of fields")
        metadata = value.get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else None
        if len(values) > 1 and isinstance(name, str) and DNS_LABEL.fullmatch(name):
            source += f" ({name})"
        documents += _items(Document(source, value))
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
        yield Document(source, item)


def _load(path: Path, text: str) -> list[Any]:
    loader = None
    try:
        _check_depth(path, text)  # a deeper nesting would overflow the composer's stack
        loader = _LOADER(text)
        values = []
        while loader.check_node():
            node = loader.get_node()
            _NodeCheck(path).count(node)
            values.append(loader.construct_document(node))
    except yaml.reader.ReaderError:
        _fail(path, "holds characters that YAML does not allow")
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        _fail(path, f"{where}is not valid YAML: {error.problem or error.context}")
    except (ValueError, LookupError, AttributeError, TypeError):  # as for 2024-99-99
        _fail(path, "holds a value that looks like a date or number and is none; quote it")
    else:
        return values
    finally:
        if loader is not None:
            loader.dispose()


def _check_depth(path: Path, text: str) -> None:
    depth = 0
    for event in _events(text):
        depth += isinstance(event, _START_EVENTS)
        depth -= isinstance(event, _END_EVENTS)
        if depth > MAX_DEPTH:
            _fail(path, f"nests more than {MAX_DEPTH} levels deep")


def _events(text: str) -> Iterator[yaml.Event]:
    yield from yaml.parse(text, Loader=_LOADER)


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
                if key.value in seen:
                    self._fail(key, f'the field "{key.value[:64]}" stands twice; remove one')
                seen.add(key.value)
                yield value

    def _fail(self, node: yaml.Node, message: str) -> NoReturn:
        _fail(self.path, f"line {node.start_mark.line + 1}: {message}")


def _fail(path: Path, message: str) -> NoReturn:
    raise ConfigError(f"{path}: {message}")
