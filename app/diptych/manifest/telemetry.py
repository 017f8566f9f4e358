"""Whether the environment asks for traces, and where they go. The SDK reads all else by itself.

No value of a variable is logged: many hold keys.
"""

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

DEFAULT_ENDPOINT: Final = "http://localhost:4318"
_OTLP = "OTEL_EXPORTER_OTLP_"
_CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_PROPAGATORS = "OTEL_PROPAGATORS"
_WITH_CONTENT = frozenset({"true", "1", "span_only", "span_and_event"})
_KNOWN_PROPAGATORS = frozenset({"tracecontext", "baggage", "none"})


@dataclass(frozen=True, slots=True)
class TelemetrySettings:
    """Where traces go.

    `origin` is the collector's scheme, host and port, empty without one; with `has_console` spans
    are printed on stdout. With `has_content` they have messages, arguments and results.
    """

    origin: str = ""
    has_console: bool = False
    has_content: bool = False

    @property
    def where(self) -> str:
        """Where traces go, in words."""
        names = [self.origin, "standard output" if self.has_console else ""]
        where = " and ".join(name for name in names if name)
        return f"{where}, with contents of messages" if self.has_content else where


def read_telemetry(environ: Mapping[str, str]) -> tuple[TelemetrySettings | None, list[str]]:
    """Return the settings, None for no traces, and a line for each reason why none are sent."""
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None, []
    endpoint = environ.get(f"{_OTLP}TRACES_ENDPOINT") or environ.get(f"{_OTLP}ENDPOINT")
    text = environ.get("OTEL_TRACES_EXPORTER") or ("otlp" if endpoint else "none")
    named = {name.strip().lower() for name in text.split(",")} - {"", "none"}
    notes = []
    if unknown := named - {"otlp", "console"}:
        notes.append(f"OTEL_TRACES_EXPORTER: {len(unknown)} of its names are not otlp or console")
    origin = ""
    if "otlp" in named:
        origin = _origin(endpoint or DEFAULT_ENDPOINT)
        if problem := _otlp_problem(environ, origin):
            notes.append(f"{problem}; no traces are sent there")
            origin = ""
    has_console = "console" in named
    if not (origin or has_console):
        return None, notes
    has_content = environ.get(_CONTENT, "").lower() in _WITH_CONTENT
    return TelemetrySettings(origin, has_console, has_content), notes


def drop_unknown_propagators(environ: MutableMapping[str, str]) -> str:
    """Remove propagators that are not installed from the environment; returns a line about them.

    OpenTelemetry's API, which the MCP SDK imports in any case, fails at import for each of them.
    """
    named = [name.strip() for name in environ.get(_PROPAGATORS, "").split(",") if name.strip()]
    known = [name for name in named if name in _KNOWN_PROPAGATORS]
    if len(known) == len(named):
        return ""
    environ[_PROPAGATORS] = ",".join(known) or "tracecontext"
    return f"{_PROPAGATORS}: all but tracecontext, baggage and none are left out"


def _otlp_problem(environ: Mapping[str, str], origin: str) -> str:
    """Return why nothing can be sent by OTLP, "" if it can."""
    name = f"{_OTLP}TRACES_PROTOCOL"
    name = name if environ.get(name) else f"{_OTLP}PROTOCOL"
    if environ.get(name, "http/protobuf").strip().lower() not in {"", "http/protobuf"}:
        return (
            f"{name}: this version speaks http/protobuf; set it to that, and the endpoint to the "
            "collector's port for HTTP (4318 as a rule, where gRPC has 4317)"
        )
    return "" if origin else "the endpoint of OTLP is no URL that begins with http:// or https://"


def _origin(url: str) -> str:
    """Return scheme, host and port of a URL, without a password; "" for anything else."""
    try:
        parts = urlsplit(url.strip())
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return ""
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        return ""
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}{port}"
