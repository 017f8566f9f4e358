"""Where secrets are kept, and how each is read at the moment of use.

On a laptop a reference to key `api-key` of Secret `models` is looked for in the file of
`--secrets`, then in Secret documents beside the Agents, then in the environment variable
`MODELS_API_KEY`. ConfigMaps go the same way. In a pod, secrets are mounted files (`mounted`).

Not here: which field needs which secret (`resolving`).
"""

import base64
import binascii
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, NoReturn, TypeAlias, TypeVar

from diptych.config.documents import Document, parse_documents, read_text
from diptych.errors import ConfigError
from diptych.ports import Secret

Kind = Literal["Secret", "ConfigMap"]
Objects: TypeAlias = dict[tuple[str, str], dict[str, dict[str, str]]]
"""(kind, name) → namespace → key → value."""

T = TypeVar("T")

_MANIFESTS = re.compile(r"""^[\s{]*["']?kind["']?\s*:\s*["']?(Secret|ConfigMap)""", re.MULTILINE)
_ASSIGNMENT = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*)")
_DOUBLE_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"\s*(?:#.*)?')
_SINGLE_QUOTED = re.compile(r"'([^']*)'\s*(?:#.*)?")
_ONCE = (0,)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference to one key, as a manifest in `namespace` makes it."""

    kind: Kind
    name: str
    key: str
    namespace: str = "default"

    @property
    def variable(self) -> str:
        """The environment variable that stands for it on a laptop."""
        return re.sub(r"[^A-Z0-9]", "_", f"{self.name}_{self.key}".upper())

    @property
    def file(self) -> str:
        """Where it is mounted in a pod, below the folder of references."""
        return f"{self.kind.lower()}s/{self.name}/{self.key}"


@dataclass(frozen=True, slots=True)
class _Kept:
    """What a file of secrets, or several documents, hold."""

    variables: Mapping[str, str]
    objects: Objects

    def find(self, wanted: Reference) -> str | None:
        found = self.all_of(wanted.kind, wanted.name, wanted.namespace).get(wanted.key)
        return found or self.variables.get(wanted.variable)

    def all_of(self, kind: Kind, name: str, namespace: str) -> Mapping[str, str]:
        spaces = self.objects.get((kind, name), {})
        only = next(iter(spaces.values())) if len(spaces) == 1 else {}
        return spaces.get(namespace, only)


class SecretSources:
    """All places where a laptop keeps secrets. The constructor raises `ConfigError`."""

    def __init__(
        self,
        environ: Mapping[str, str],
        file: Path | None = None,
        documents: Sequence[Document] = (),
    ) -> None:
        self._environ = environ
        self._documents = _Kept({}, _objects(documents))
        self._file = _WatchedFile(file, _read_kept) if file else None
        if self._file:
            self._file.load()

    def find(self, wanted: Reference) -> Secret:
        """Give what reads the secret, newly each time; it gives None while it is missing."""

        def read() -> str | None:
            kept = self._file.current() if self._file else None
            return (
                (kept.find(wanted) if kept else None)
                or self._documents.find(wanted)
                or self._environ.get(wanted.variable)
                or None
            )

        return read

    def all_of(self, kind: Kind, name: str, namespace: str) -> dict[str, Secret]:
        """Give every key of a Secret or ConfigMap that is known now; none if it is not known."""
        kept = [self._documents, self._file.current() if self._file else None]
        keys = [key for one in kept if one for key in one.all_of(kind, name, namespace)]
        return {key: self.find(Reference(kind, name, key, namespace)) for key in keys}


def literal(text: str) -> Secret:
    """Make what stands in a manifest itself look like a secret."""
    return lambda: text


def mounted(path: Path) -> Secret:
    """Give what reads a secret from a file, taking up changes; None while there is no file."""
    file = _WatchedFile(path, lambda path: read_text(path).rstrip("\r\n"))
    return lambda: file.current() or None


class _WatchedFile(Generic[T]):
    """A file that is read again when it has changed.

    A change that cannot be read is not taken up: what was read before stays. So it is too for a
    pipe (`--secrets <(decrypt …)`), which can be read only once.
    """

    def __init__(self, path: Path, parse: Callable[[Path], T]) -> None:
        self._path = path
        self._parse = parse
        self._version: tuple[int, ...] | None = None
        self._value: T | None = None

    def load(self) -> None:
        """Read the file for the first time. Raises `ConfigError`."""
        version = self._stat() if self._path.is_file() else _ONCE
        self._value = self._parse(self._path)
        self._version = version

    def current(self) -> T | None:
        """Give what the file holds; None if it is not there."""
        if self._version == _ONCE:
            return self._value
        version = self._stat()
        if version is None:
            self._version = self._value = None
        elif version != self._version:
            self._version = version
            try:
                self._value = self._parse(self._path)
            except ConfigError:
                return self._value
        return self._value

    def _stat(self) -> tuple[int, ...] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino


def _read_kept(path: Path) -> _Kept:
    text = read_text(path)
    if _MANIFESTS.search(text):
        return _Kept({}, _objects(parse_documents(path, text)))
    return _Kept(_dotenv(path, text), {})


def _dotenv(path: Path, text: str) -> dict[str, str]:
    variables = {}
    problems = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        found = _ASSIGNMENT.fullmatch(line.strip())
        value = _unquoted(found[2]) if found else None
        if found and value is not None:
            variables[found[1]] = value
        else:
            problems.append(f'{path}: line {number}: must be NAME=value or NAME="value"')
    if problems:
        raise ConfigError(*problems[:10])
    return variables


def _unquoted(text: str) -> str | None:
    if text.startswith('"'):
        found = _DOUBLE_QUOTED.fullmatch(text)
        return re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[1]), found[1]) if found else None
    if text.startswith("'"):
        found = _SINGLE_QUOTED.fullmatch(text)
        return found[1] if found else None
    return re.sub(r"(^|\s+)#.*", "", text).strip()


def _objects(documents: Sequence[Document]) -> Objects:
    objects: Objects = {}
    for document in documents:
        kind, metadata = document.content.get("kind"), document.content.get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else None
        if kind not in ("Secret", "ConfigMap"):
            _fail(document, "must be Secrets or ConfigMaps, or lines of NAME=value")
        if not isinstance(name, str) or not isinstance(metadata, dict):
            _fail(document, "metadata.name: is required")
        spaces = objects.setdefault((str(kind), name), {})
        namespace = str(metadata.get("namespace", "default"))
        if namespace in spaces:
            _fail(document, f"a second {kind} called {name}; remove one")
        spaces[namespace] = _values(document, f"{kind} {name}")
    return objects


def _values(document: Document, called: str) -> dict[str, str]:
    """Read what an object holds; `stringData` wins over `data`, as in Kubernetes."""
    values = {}
    encoded = document.content.get("kind") == "Secret"
    for field, is_base64 in (("data", encoded), ("stringData", False)):
        entries = document.content.get(field) or {}
        if not isinstance(entries, dict):
            _fail(document, f"{called}: {field}: must be a mapping of keys to strings")
        for key, value in entries.items():
            text = _decoded(value) if is_base64 else value
            if not isinstance(text, str):
                wanted = "base64 of UTF-8 text" if is_base64 else "a string; quote it"
                _fail(document, f"{called}: {field}.{key}: must be {wanted}")
            values[str(key)] = text.rstrip("\r\n")
    return values


def _decoded(value: object) -> str | None:
    try:
        return base64.b64decode("".join(str(value).split()), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return None


def _fail(document: Document, sentence: str) -> NoReturn:
    message = f"{document.source}: {sentence}"
    raise ConfigError(message)
