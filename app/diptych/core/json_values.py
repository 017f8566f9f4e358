"""Converts values to JSON for records, stores and other agents, and back."""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, fields
from decimal import Decimal
from typing import Any, Generic, NamedTuple, TypeVar

from diptych.core.budget import (
    Prices,
    decimal_text,
    decode_budget,
    decode_used,
    encode_budget,
)
from diptych.core.catalog import Catalog, Peer, Tool, Unavailable
from diptych.core.messages import JSON, ChildRun, Message, NativeCall, ParentCall, Result, Usage
from diptych.core.run_settings import RunSettings

Stored = Any
"""JSON from a store; its reader knows the structure."""

_Value = TypeVar("_Value")


class Way(NamedTuple):
    """How one field is written to JSON and read back."""

    write: Callable[[Any], JSON]
    read: Callable[[Any], Any]


AS_IT_IS = Way(lambda value: value, lambda value: value)
TUPLE = Way(list, tuple)


class _Field(NamedTuple):
    name: str
    key: str
    way: Way
    default: Any  # `MISSING` for a required field
    is_always_written: bool


class Form(Generic[_Value]):
    """The JSON form of a dataclass: one key for each of its `names`; defaults are omitted.

    Fields in `always` are written even at their default. `keys` renames fields; `ways` converts
    fields that are not plain JSON.
    """

    def __init__(
        self,
        kind: Callable[..., _Value],
        *names: str,
        always: tuple[str, ...] = (),
        keys: Mapping[str, str] | None = None,
        **ways: "Way | Form[Any]",
    ) -> None:
        self._kind = kind
        defaults = {each.name: _default(each) for each in fields(kind)}  # type: ignore[arg-type]
        self._fields = [
            _Field(
                name,
                (keys or {}).get(name, name),
                _way(ways.get(name, AS_IT_IS)),
                defaults[name],
                name in always,
            )
            for name in names
        ]

    def write(self, value: _Value) -> dict[str, JSON]:
        """Convert a value to a JSON object."""
        found: dict[str, JSON] = {}
        for name, key, way, default, is_always_written in self._fields:
            given = getattr(value, name)
            if is_always_written or given != default:
                found[key] = way.write(given)
        return found

    def read(self, stored: Mapping[str, Any], **others: object) -> _Value:
        """Convert a JSON object back; `others` supplies fields stored elsewhere.

        Raises `TypeError` if a required field is missing.
        """
        given = {f.name: f.way.read(stored[f.key]) for f in self._fields if f.key in stored}
        return self._kind(**given, **others)


def _default(field: Any) -> Any:  # noqa: ANN401 - a field of any dataclass
    made = field.default_factory
    return field.default if made is MISSING else made()


def _way(given: "Way | Form[Any]") -> Way:
    return Way(given.write, given.read)


def several(form: Form[Any]) -> Way:
    """Return the way for a tuple of values of one form."""
    return Way(lambda values: list(map(form.write, values)), lambda s: tuple(map(form.read, s)))


USAGE = Form(
    Usage,
    "prompt_tokens",
    "completion_tokens",
    always=("prompt_tokens", "completion_tokens"),
)
usage_value, read_usage = USAGE.write, USAGE.read
PARENT = Form(ParentCall, "agent", "run_id", "call_id")
parent_value = PARENT.write
BUDGET = Way(encode_budget, decode_budget)
CHILD = Form(
    ChildRun,
    *("url", "task_id", "state", "code", "text", "usage", "used"),
    usage=USAGE,
    used=Way(encode_budget, decode_used),
)
NATIVE_CALL = Form(NativeCall, "id", "name", "arguments", "extra")
MESSAGE = Form(
    Message,
    *("role", "content", "calls", "call_id", "parts", "results", "keeps", "reasoning", "sources"),
    calls=several(NATIVE_CALL),
    parts=TUPLE,
    results=Way(lambda places: list(map(list, places)), lambda s: tuple((a, b) for a, b in s)),
    sources=TUPLE,
)
encode_message, decode_message = MESSAGE.write, MESSAGE.read
CALLER_TOOL = Form(Tool, "server", "name", "description", "input_schema")
PARTIAL_RESULT = Form(Result, "call_id", "text", "error", always=("error",))


def encode_prices(prices: Prices) -> JSON:
    """Return prices as two decimal strings: of a million prompt tokens, and reply tokens."""
    return [decimal_text(prices.input), decimal_text(prices.output)]


def read_prices(stored: Mapping[str, Any]) -> Prices | None:
    """Read the `prices` of settings or of an `offered` record, if any."""
    return Prices(*map(Decimal, stored["prices"])) if stored.get("prices") else None


def encode_settings(settings: RunSettings) -> dict[str, Any]:
    """Return settings as JSON, to store with a run's catalog."""
    budget = encode_budget(settings.budget)
    prices = settings.prices and encode_prices(settings.prices)
    return {**asdict(settings), "budget": budget, "prices": prices}


def decode_settings(stored: Mapping[str, Any]) -> RunSettings:
    """Reverse `encode_settings`. Raises `TypeError` for an unknown setting."""
    budget, hooks = decode_budget(stored["budget"]), tuple(stored["hooks"])
    return RunSettings(
        **{**stored, "budget": budget, "hooks": hooks, "prices": read_prices(stored)}
    )


def encode_catalog(catalog: Catalog) -> dict[str, Any]:
    """Return the catalog as JSON."""
    return asdict(catalog)


def decode_catalog(stored: Mapping[str, Any]) -> Catalog:
    """Reverse `encode_catalog`."""
    return Catalog(
        tuple(Tool(**tool) for tool in stored["tools"]),
        tuple(Peer(**{**peer, "skills": tuple(peer["skills"])}) for peer in stored["agents"]),
        tuple(_decode_unavailable(entry) for entry in stored["unavailable"]),
    )


def _decode_unavailable(stored: Mapping[str, Any]) -> Unavailable:
    names = stored["tools"]
    return Unavailable(**{**stored, "tools": None if names is None else tuple(names)})
