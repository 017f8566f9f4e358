"""What the environment says of OpenTelemetry: where traces go, and which variables have no effect.

The SDK reads most variables itself. Here is read what decides whether it is loaded at all, and what
it would pass over in silence. No value is ever told: many hold keys.
"""

import re
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, get_args
from urllib.parse import urlsplit

Exporter: TypeAlias = Literal["otlp", "console"]

DEFAULT_ENDPOINT: Final = "http://localhost:4318"
EXPORT_SECONDS: Final = 10.0
_PREFIX = "OTEL_"
_OTLP = "OTEL_EXPORTER_OTLP_"
_CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_PROPAGATORS = "OTEL_PROPAGATORS"
_MAX_NAMES = 20  # that a line of the log shows
_MAX_NAME = 64  # characters of each
_WITH_CONTENT = frozenset({"true", "1", "span_only", "span_and_event"})
_SAMPLERS = frozenset(
    f"{parent}{name}"
    for parent in ("", "parentbased_")
    for name in ("always_on", "always_off", "traceidratio")
)
_HEADERS = (f"{_OTLP}HEADERS", f"{_OTLP}TRACES_HEADERS")
_BATCHES = {"OTEL_BSP_SCHEDULE_DELAY", "OTEL_BSP_MAX_QUEUE_SIZE", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE"}
_LIMITS = {
    f"OTEL_{of}ATTRIBUTE_{what}_LIMIT" for of in ("", "SPAN_") for what in ("COUNT", "VALUE_LENGTH")
}
_SAMPLER_ARG = "OTEL_TRACES_SAMPLER_ARG"
_KNOWN_PROPAGATORS = frozenset({"tracecontext", "baggage", "none"})
_HAS_EFFECT = frozenset(
    f"{_OTLP}{signal}{name}"
    for signal in ("", "TRACES_")
    for name in (
        *("ENDPOINT", "HEADERS", "TIMEOUT", "COMPRESSION", "PROTOCOL"),
        *("CERTIFICATE", "CLIENT_KEY", "CLIENT_CERTIFICATE"),
    )
) | {
    *("OTEL_SDK_DISABLED", "OTEL_TRACES_EXPORTER", "OTEL_TRACES_SAMPLER"),
    *("OTEL_TRACES_SAMPLER_ARG", "OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"),
    *("OTEL_EXPERIMENTAL_RESOURCE_DETECTORS", "OTEL_SEMCONV_STABILITY_OPT_IN"),
    *_BATCHES,
    *_LIMITS,
    *(_CONTENT, _PROPAGATORS),
}


@dataclass(frozen=True, slots=True)
class TelemetrySettings:
    """That traces are sent, and how.

    `origin` is the collector's scheme, host and port, for people. An export has `timeout` seconds.
    With `has_content` messages, arguments and results are in the traces. `numbers` are the valid
    ones of queues and limits, by their variables: at others the SDK fails, some unseen.
    """

    exporters: tuple[Exporter, ...]
    origin: str = ""
    timeout: float = EXPORT_SECONDS
    has_content: bool = False
    numbers: Mapping[str, int] = field(default_factory=dict)

    @property
    def where(self) -> str:
        """Where traces go, in words."""
        names = {"otlp": self.origin, "console": "standard output"}
        where = " and ".join(names[name] for name in self.exporters)
        return f"{where}, with contents of messages" if self.has_content else where


def read_telemetry(environ: Mapping[str, str]) -> tuple[TelemetrySettings | None, list[str]]:
    """Say whether and how traces are sent, and give a line for each thing that has no effect."""
    given = {
        name: value.strip()
        for name, value in environ.items()
        if name.startswith(_PREFIX) and value.strip()
    }
    if not given or given.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None, []
    notes: list[str] = []
    exporters = _exporters(given, notes)
    if not exporters:
        if not notes and given.get("OTEL_TRACES_EXPORTER") != "none":
            idle = _without(given, {_PROPAGATORS, "OTEL_METRICS_EXPORTER", "OTEL_LOGS_EXPORTER"})
            notes += _idle_line(idle, "nothing says where traces go (OTEL_EXPORTER_OTLP_ENDPOINT)")
        return None, notes
    unknown = _without(given, _HAS_EFFECT | _switched_off(given))
    notes += _idle_line(unknown, "this version sends traces, and reads nothing else of these")
    settings = TelemetrySettings(
        exporters,
        _origin(_endpoint(given) or DEFAULT_ENDPOINT),
        _timeout(given, notes),
        given.get(_CONTENT, "").lower() in _WITH_CONTENT,
        {name: int(given[name]) for name in _BATCHES | _LIMITS if _is_number(name, given)},
    )
    return settings, notes + _value_notes(given)


def drop_unknown_propagators(environ: MutableMapping[str, str]) -> str:
    """Take propagators out of the environment that are not there; gives a line that says so.

    The API fails with each of them as soon as it is imported, which the MCP SDK does in any case.
    """
    named = [name.strip() for name in environ.get(_PROPAGATORS, "").split(",") if name.strip()]
    known = [name for name in named if name in _KNOWN_PROPAGATORS]
    if len(known) == len(named):
        return ""
    environ[_PROPAGATORS] = ",".join(known) or "tracecontext"
    return f"{_PROPAGATORS}: what is none of tracecontext, baggage and none is left out"


def _exporters(given: Mapping[str, str], notes: list[str]) -> tuple[Exporter, ...]:
    """Give what traces are sent by; what is named and cannot be is told."""
    endpoint = _endpoint(given)
    text = given.get("OTEL_TRACES_EXPORTER") or ("otlp" if endpoint else "none")
    named = {name.strip().lower() for name in text.split(",")} - {"", "none"}
    if unknown := named.difference(get_args(Exporter)):
        notes.append(
            f"OTEL_TRACES_EXPORTER: {len(unknown)} of its names is none of otlp, console and none"
        )
    if "otlp" in named and (problem := _otlp_problem(given, endpoint)):
        named.discard("otlp")
        notes.append(f"{problem}; no traces are sent there")
    return tuple(name for name in get_args(Exporter) if name in named)


def _otlp_problem(given: Mapping[str, str], endpoint: str | None) -> str:
    """Say why nothing can be sent by OTLP, "" if it can."""
    name = f"{_OTLP}TRACES_PROTOCOL"
    name = name if name in given else f"{_OTLP}PROTOCOL"
    if given.get(name, "http/protobuf").lower() != "http/protobuf":
        return (
            f"{name}: this version speaks http/protobuf; set it to that, and the endpoint to the "
            "collector's port for HTTP (4318 as a rule, where gRPC has 4317)"
        )
    if endpoint and not _origin(endpoint):
        return "the endpoint of OTLP is no URL that begins with http:// or https://"
    return ""


def _endpoint(given: Mapping[str, str]) -> str | None:
    return given.get(f"{_OTLP}TRACES_ENDPOINT") or given.get(f"{_OTLP}ENDPOINT")


def _origin(url: str) -> str:
    """Give scheme, host and port of a URL, without a password; "" if it is none."""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return ""
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        return ""
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}{port}"


def _timeout(given: Mapping[str, str], notes: list[str]) -> float:
    """Give an export's seconds: OpenTelemetry defines milliseconds, and the SDK reads seconds."""
    name = f"{_OTLP}TRACES_TIMEOUT"
    name = name if name in given else f"{_OTLP}TIMEOUT"
    text = given.get(name)
    if text is None:
        return EXPORT_SECONDS
    if not re.fullmatch(r"[1-9]\d{0,5}", text):
        notes.append(f"{name}: is no number of milliseconds from 1 to 999999, so 10 s hold")
        return EXPORT_SECONDS
    return int(text) / 1000


def _value_notes(given: Mapping[str, str]) -> list[str]:
    """Tell values that the SDK would pass over."""
    notes = []
    if given.get(_CONTENT, "").lower() == "event_only":
        notes.append(f"{_CONTENT}: there are no events; SPAN_ONLY puts contents into the spans")
    if given.get("OTEL_TRACES_SAMPLER", "always_on") not in _SAMPLERS:
        notes.append("OTEL_TRACES_SAMPLER: is not built in, so parentbased_always_on may hold")
    if not re.fullmatch(r"0(\.\d+)?|1(\.0+)?", given.get(_SAMPLER_ARG, "1")):
        notes.append(f"{_SAMPLER_ARG}: is no number from 0 to 1, so 1 holds")
    notes += [
        f"{name}: is no number from {int(name in _BATCHES)} to 999999999, so the default holds"
        for name in sorted((_BATCHES | _LIMITS) & given.keys())
        if not _is_number(name, given)
    ]
    if given.get(f"{_OTLP}COMPRESSION", "none").lower() not in {"none", "gzip", "deflate"}:
        notes.append(f"{_OTLP}COMPRESSION: is none of gzip, deflate and none, so none holds")
    return notes + [
        f"{name}: an entry that is no name=value is left out"
        for name in (*_HEADERS, "OTEL_RESOURCE_ATTRIBUTES")
        if not all("=" in part for part in given.get(name, "=").split(",") if part.strip())
    ]


def _is_number(name: str, given: Mapping[str, str]) -> bool:
    """Whether a variable has a number that queues and limits can have."""
    text = given.get(name, "")
    return re.fullmatch(r"[0-9]{1,9}", text) is not None and int(text) >= (name in _BATCHES)


def _switched_off(given: Mapping[str, str]) -> set[str]:
    """Give the signals that are not sent, as their variables say."""
    return {f"OTEL_{s}_EXPORTER" for s in ("METRICS", "LOGS")}.intersection(
        name for name, value in given.items() if value.lower() == "none"
    )


def _without(given: Iterable[str], names: Iterable[str]) -> list[str]:
    return sorted(set(given).difference(names))


def _idle_line(names: list[str], why: str) -> list[str]:
    if not names:
        return []
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    shown = ", ".join(name[:_MAX_NAME] for name in names[:_MAX_NAMES])
    return [f"{shown}{more}: without effect, as {why}"]
