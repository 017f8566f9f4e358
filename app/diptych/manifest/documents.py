"""Reads YAML files as Kubernetes does, within bounds, and names the lines of mistakes."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn, TypeAlias

import yaml

from diptych.core.errors import ConfigError
from diptych.manifest.fields import DNS_LABEL

FieldPath: TypeAlias = tuple[str | int, ...]
"""The path of a field: names of fields, and indexes of lists."""

_MAX_NAME = 64  # characters


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """The source of a manifest: a file, a document of a file, or environment variables.

    `variables` says which environment variable a field was made from; the longest path counts.
    `node` is the document, if it was read from a file.
    """

    source: str
    variables: Mapping[FieldPath, str] = field(default_factory=dict)
    node: yaml.Node | None = field(default=None, compare=False, repr=False)

    def describe(self, path: FieldPath) -> str:
        """Name a field: `agent.yaml: spec.tools[0].url`, or `MCP_SERVER_CALCULATOR_URL`."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.variables:
                return self.variables[path[:length]]
        return ": ".join(part for part in (self.source, dotted_path(path)) if part)

    def locate(self, path: FieldPath) -> str:
        """Name a field and its line: `agent.yaml: line 9: spec.tools[0].url`."""
        if self.node is None:
            return self.describe(path)
        line = node_at(self.node, path).start_mark.line + 1
        return f"{self.source}: line {line}: {dotted_path(path)}"


def node_at(node: yaml.Node, path: FieldPath) -> yaml.Node:
    """Find a field's node, or that of the innermost field around it that is there."""
    for part in path:
        if isinstance(node, yaml.MappingNode):
            node = field_node(node, part) or node
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int):
            node = node.value[part] if part < len(node.value) else node
    return node


def field_node(node: yaml.Node | None, name: str | int) -> yaml.Node | None:
    """Find the node of a mapping's field."""
    if not isinstance(node, yaml.MappingNode):
        return None
    return next((value for key, value in node.value if key.value == name), None)


def dotted_path(path: FieldPath) -> str:
    """Write a path as readers of manifests do: `spec.tools[0].url`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            is_plain = part.replace("_", "").replace("-", "").isalnum() and len(part) <= _MAX_NAME
            text += f".{part}" if is_plain else f".{json.dumps(part[:_MAX_NAME])}"
    return text.removeprefix(".")


_TRUE: Final = {"y", "yes", "true", "on"}
_FALSE: Final = {"n", "no", "false", "off"}
_NULL: Final = {"", "~", "null", "Null", "NULL"}
_NUMBERLESS: Final = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_INTEGER: Final = re.compile(
    r"[-+]?(?:0[xX](?P<hex>[0-9a-fA-F]+)|0[bB](?P<bin>[01]+)|0[oO]?(?P<oct>[0-7]+)|0|[1-9][0-9]{0,19})"
)
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_BETWEEN: Final = re.compile(r"(?<=[0-9])_(?=[0-9])")
_BASES: Final = {"hex": 16, "bin": 2, "oct": 8}
_MIN_INTEGER, _MAX_INTEGER = -(2**63), 2**63 - 1


def resolve_scalar(text: str) -> str | int | float | bool | None:
    """Return a plain scalar's value. Raises `ValueError` for infinity and not-a-number."""
    if text in _NULL:
        return None
    if text in {text.lower(), text.capitalize(), text.upper()} and text.lower() in _TRUE | _FALSE:
        return text.lower() in _TRUE
    if _NUMBERLESS.fullmatch(text):
        raise ValueError(text)
    digits = _BETWEEN.sub("", text) if text[0] == "." else text.replace("_", "")
    if text[0] == "_":
        return text
    number: float | None = _integer(digits)
    if number is None and _FLOAT.fullmatch(digits) and math.isfinite(float(digits)):
        number = float(digits)
    if number is None:
        return text
    is_whole = number == int(number) and _MIN_INTEGER <= number <= _MAX_INTEGER
    return int(number) if is_whole else float(number)


def _integer(digits: str) -> int | None:
    """Read an integer of Go's syntax and 64 bits; None for anything else."""
    found = _INTEGER.fullmatch(digits)
    if found is None:
        return None
    base = found.lastgroup
    size = int(found[base], _BASES[base]) if base else int(digits.lstrip("+-"))
    number = -size if digits.startswith("-") else size
    return number if _MIN_INTEGER <= number < 2**64 else None


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
    """One YAML document. Its source is its file, and its number and name if there are several."""

    location: SourceLocation
    content: dict[str, Any]
    notes: tuple[str, ...] = ()
    """Advice about fields that are read as something else."""

    @property
    def source(self) -> str:
        return self.location.source


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
    loaded = [each for each in _load(path, text) if each[1] is not None]
    if not loaded:
        _fail(path, "is empty")
    documents: list[Document] = []
    for number, (node, value, notes) in enumerate(loaded, start=1):
        source = f"{path}: document {number}" if len(loaded) > 1 else str(path)
        if not isinstance(value, dict):
            raise ConfigError(f"{source}: must be a mapping of fields")
        metadata = value.get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else None
        if len(loaded) > 1 and isinstance(name, str) and DNS_LABEL.fullmatch(name):
            source += f" ({name})"
        documents += _items(Document(SourceLocation(source, node=node), value, notes))
    return tuple(documents)


def _items(document: Document) -> Iterator[Document]:
    """Return the items of a List, as `kubectl get -o yaml` writes it, or the document itself."""
    items = document.content.get("items")
    if document.content.get("kind") != "List" or not isinstance(items, list):
        yield document
        return
    nodes = field_node(document.location.node, "items")
    for number, item in enumerate(items):
        source = f"{document.source}: item {number + 1}"
        if not isinstance(item, dict):
            raise ConfigError(f"{source}: must be a mapping of fields")
        yield Document(SourceLocation(source, node=nodes and nodes.value[number]), item)


def _load(path: Path, text: str) -> list[tuple[yaml.Node, Any, tuple[str, ...]]]:
    """Load each document's node, value and notes."""
    loader = None
    try:
        _check_depth(path, text)  # a deeper nesting would overflow the composer's stack
        loader = _Loader(text)
        loaded = []
        while loader.check_node():
            node = loader.get_node()
            notes = tuple(_rename_hook_points(node))
            _NodeCheck(path).count(node)
            loaded.append((node, loader.construct_document(node), notes))
    except yaml.reader.ReaderError:
        _fail(path, "holds characters that YAML does not allow")
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        if mark and (line := _quoted(text, mark.line)):
            _fail(path, f"{where}quote the text: {line}")
        hint = '; quote a text that holds ": "' if "mapping values" in str(error.problem) else ""
        lines = text.split("\n")[mark.line : mark.line + 1] if mark else []
        if mark and any("\t" in line[: mark.column + 1] for line in lines):
            hint = "; indent with spaces: YAML takes no tabs"
        _fail(path, f"{where}is not valid YAML: {error.problem or error.context}{hint}")
    else:
        return loaded
    finally:
        if loader is not None:
            loader.dispose()


def _rename_hook_points(document: yaml.Node) -> Iterator[str]:
    """Rename each `on` of `spec.hooks` to `at`, with a note for each.

    kubectl reads the name `on` as true. People write it all the same.
    """
    hooks = field_node(field_node(document, "spec"), "hooks")
    for number, hook in enumerate(hooks.value if isinstance(hooks, yaml.SequenceNode) else ()):
        entries = hook.value if isinstance(hook, yaml.MappingNode) else []
        keys = {key.value: key for key, _ in entries if isinstance(key, yaml.ScalarNode)}
        if "on" in keys and "at" not in keys:
            keys["on"].value, keys["on"].tag = "at", _STRING
            yield f"spec.hooks[{number}].on is read as at; kubectl takes on for true: write at"


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


def _fail(path: Path, message: str) -> NoReturn:
    raise ConfigError(f"{path}: {message}")
