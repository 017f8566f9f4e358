"""Where secrets and ConfigMaps are on a laptop and in a pod; each is read when it is used.

On a laptop, key `api-key` of Secret `models` is looked up in the file of `--secrets`, then in
Secret documents beside the Agents, then in the environment variable `MODELS_API_KEY`. Keys of
ConfigMaps are looked up the same way. In a pod, keys are mounted files (`value_from_file`).
"""

import base64
import binascii
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, NoReturn, TypeAlias, TypeVar

from diptych.core.errors import ConfigError
from diptych.manifest.documents import Document, parse_documents, read_text
from diptych.manifest.settings import NAMESPACE
from diptych.ports import ValueProvider

Kind: TypeAlias = Literal["Secret", "ConfigMap"]
ObjectValues: TypeAlias = dict[tuple[str, str], dict[str, dict[str, str]]]
"""(kind, name) → namespace → key → value."""

T = TypeVar("T")

_OBJECT_KIND = re.compile(r"""^[\s{]*["']?kind["']?\s*:\s*["']?(Secret|ConfigMap)""", re.MULTILINE)
_ASSIGNMENT = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*)")
_DOUBLE_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"\s*(?:#.*)?')
_SINGLE_QUOTED = re.compile(r"'([^']*)'\s*(?:#.*)?")
_READ_ONCE = (0,)  # the version of a pipe
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference to one key, as a manifest in `namespace` makes it."""

    kind: Kind
    name: str
    key: str
    namespace: str = NAMESPACE

    @property
    def variable(self) -> str:
        """The environment variable that holds it on a laptop."""
        return re.sub(r"[^A-Z0-9]", "_", f"{self.name}_{self.key}".upper())

    @property
    def file(self) -> str:
        """Its mounted file in a pod, below the folder of references."""
        return f"{self.kind.lower()}s/{self.name}/{self.key}"


@dataclass(frozen=True, slots=True)
class _SecretValues:
    """The values that a file of secrets, or several documents, hold."""

    variables: Mapping[str, str]
    objects: ObjectValues

    def find(self, reference: Reference) -> str | None:
        keys = self.keys_of(reference.kind, reference.name, reference.namespace)
        return keys.get(reference.key) or self.variables.get(reference.variable)

    def keys_of(self, kind: Kind, name: str, namespace: str) -> Mapping[str, str]:
        """Return all keys of an object; the only one of its name may be in any namespace."""
        by_namespace = self.objects.get((kind, name), {})
        only = next(iter(by_namespace.values())) if len(by_namespace) == 1 else {}
        return by_namespace.get(namespace, only)


class SecretSources:
    """All places where a laptop has secrets. The constructor raises `ConfigError`."""

    def __init__(
        self,
        environ: Mapping[str, str],
        file: Path | None = None,
        documents: Sequence[Document] = (),
    ) -> None:
        self._environ = environ
        self._documents = _SecretValues({}, _object_values(documents))
        self._file = _ReloadedFile(file, _read_secrets) if file else None
        if self._file:
            self._file.load()

    def find(self, reference: Reference) -> ValueProvider:
        """Return a reader of a key, which reads it anew each time; None while it is missing."""

        def read() -> str | None:
            found = (values.find(reference) for values in self._values())
            return next(filter(None, found), None) or self._environ.get(reference.variable) or None

        return read

    def keys_of(self, kind: Kind, name: str, namespace: str) -> dict[str, ValueProvider]:
        """Return a reader of each known key of a Secret or ConfigMap."""
        return {
            key: self.find(Reference(kind, name, key, namespace))
            for values in self._values()
            for key in values.keys_of(kind, name, namespace)
        }

    def _values(self) -> Iterator[_SecretValues]:
        if self._file and (values := self._file.current()):
            yield values
        yield self._documents


def constant_value(text: str) -> ValueProvider:
    """Return a reader of a value of the manifest itself."""
    return lambda: text


def value_from_file(path: Path) -> ValueProvider:
    """Return a reader of a file, also after changes; None while there is no file."""
    file = _ReloadedFile(path, lambda path: read_text(path).rstrip("\r\n"))
    return lambda: file.current() or None


class _ReloadedFile(Generic[T]):
    """A file that is read again after it has changed.

    If the changed file cannot be read, the old value stays. A pipe (`--secrets <(decrypt …)`) is
    read only once.
    """

    def __init__(self, path: Path, parse: Callable[[Path], T]) -> None:
        self._path = path
        self._parse = parse
        self._version: tuple[int, ...] | None = None
        self._value: T | None = None

    def load(self) -> None:
        """Read the file for the first time. Raises `ConfigError`."""
        version = self._stat() if self._path.is_file() else _READ_ONCE
        self._value = self._parse(self._path)
        self._version = version

    def current(self) -> T | None:
        """Return the file's value; None if there is no file."""
        if self._version == _READ_ONCE:
            return self._value
        version = self._stat()
        if version is None:
            self._version = self._value = None
        elif version != self._version:
            self._version = version
            with suppress(ConfigError):
                self._value = self._parse(self._path)
        return self._value

    def _stat(self) -> tuple[int, ...] | None:
        try:
            stat = self._path.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_size, stat.st_ino


class CurrentFile(Generic[T]):
    """A file's parsed value, parsed again when the file changes.

    If a new text is invalid, the former value stays in force, and `problem` has the errors,
    prefixed by `what`. `start` is the first value. The constructor raises `ConfigError`.
    """

    def __init__(self, path: Path, parse: Callable[[str], T], what: str = "") -> None:
        self.problem = ""
        self._parse = parse
        self._what = what
        self._read = value_from_file(path)
        self._text = self._read() or read_text(path)
        self.start = self._value = parse(self._text)

    def current(self) -> T:
        text = self._read()
        if text is None or text == self._text:
            return self._value
        self._text = text
        try:
            self._value, self.problem = self._parse(text), ""
        except ConfigError as error:
            self.problem = f"{self._what}{'; '.join(error.problems)}; the former one stays in force"
            _logger.error("%s", self.problem)
        return self._value


def _read_secrets(path: Path) -> _SecretValues:
    text = read_text(path)
    if _OBJECT_KIND.search(text):
        return _SecretValues({}, _object_values(parse_documents(path, text)))
    return _SecretValues(_dotenv(path, text), {})


def _dotenv(path: Path, text: str) -> dict[str, str]:
    variables = {}
    problems = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _ASSIGNMENT.fullmatch(line.strip())
        value = _unquoted(match[2]) if match else None
        if match and value is not None:
            variables[match[1]] = value
        else:
            problems.append(f'{path}: line {number}: must be NAME=value or NAME="value"')
    if problems:
        raise ConfigError(*problems[:10])
    return variables


def _unquoted(text: str) -> str | None:
    if text.startswith('"'):
        match = _DOUBLE_QUOTED.fullmatch(text)
        return re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[1]), match[1]) if match else None
    if text.startswith("'"):
        match = _SINGLE_QUOTED.fullmatch(text)
        return match[1] if match else None
    return re.sub(r"(^|\s+)#.*", "", text).strip()


def _object_values(documents: Sequence[Document]) -> ObjectValues:
    objects: ObjectValues = {}
    for document in documents:
        kind, metadata = document.content.get("kind"), document.content.get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else None
        if kind not in ("Secret", "ConfigMap"):
            _fail(document, "must be Secrets or ConfigMaps, or lines of NAME=value")
        if not isinstance(name, str) or not isinstance(metadata, dict):
            _fail(document, "metadata.name: is required")
        by_namespace = objects.setdefault((str(kind), name), {})
        namespace = str(metadata.get("namespace", NAMESPACE))
        if namespace in by_namespace:
            _fail(document, f"a second {kind} called {name}; remove one")
        by_namespace[namespace] = _key_values(document, f"{kind} {name}")
    return objects


def _key_values(document: Document, name: str) -> dict[str, str]:
    """Read an object's keys; `stringData` counts before `data`, as in Kubernetes."""
    values = {}
    encoded = document.content.get("kind") == "Secret"
    for field, is_base64 in (("data", encoded), ("stringData", False)):
        entries = document.content.get(field) or {}
        if not isinstance(entries, dict):
            _fail(document, f"{name}: {field}: must be a mapping of keys to strings")
        for key, value in entries.items():
            text = _decoded(value) if is_base64 else value
            if not isinstance(text, str):
                wanted = "base64 of UTF-8 text" if is_base64 else "a string; quote it"
                _fail(document, f"{name}: {field}.{key}: must be {wanted}")
            values[str(key)] = text.rstrip("\r\n")
    return values


def _decoded(value: object) -> str | None:
    try:
        return base64.b64decode("".join(str(value).split()), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return None


def _fail(document: Document, message: str) -> NoReturn:
    raise ConfigError(f"{document.source}: {message}")
