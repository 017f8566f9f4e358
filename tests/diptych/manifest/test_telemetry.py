"""What the variables of OpenTelemetry say, and what is told of those that have no effect."""

import pytest

from diptych.manifest.environment import process_settings
from diptych.manifest.telemetry import (
    TelemetrySettings,
    drop_unknown_propagators,
    read_telemetry,
)

SINK = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://user:sesame@collector:4318/x"}


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"PATH": "/"},
        {**SINK, "OTEL_SDK_DISABLED": "True", "OTEL_X": "b"},
        {**SINK, "OTEL_TRACES_EXPORTER": "none"},
        {"OTEL_METRICS_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"},
    ],
)
def test_nothing_is_said_or_sent_where_nobody_asks_for_it(environ: dict[str, str]) -> None:
    assert read_telemetry(environ) == (None, [])
    assert process_settings(environ).telemetry is None


@pytest.mark.parametrize(
    "name", ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"]
)
def test_an_endpoint_is_enough(name: str) -> None:
    environ = {name: "http://user:sesame@collector:4318/x"}
    assert read_telemetry(environ) == (TelemetrySettings("http://collector:4318"), [])


def test_an_exporter_is_enough_and_content_is_asked_for() -> None:
    environ = {
        "OTEL_TRACES_EXPORTER": "otlp,console",
        "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "span_only",
    }
    settings, notes = read_telemetry(environ)
    assert settings == TelemetrySettings(
        "http://localhost:4318", has_console=True, has_content=True
    )
    assert not notes
    where = "http://localhost:4318 and standard output, with contents of messages"
    assert settings.where == where


@pytest.mark.parametrize("protocol", ["grpc", "http/json"])
def test_a_protocol_that_is_not_spoken_says_what_to_do(protocol: str) -> None:
    settings, notes = read_telemetry({**SINK, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol})
    assert settings is None
    assert notes == [
        (
            "OTEL_EXPORTER_OTLP_PROTOCOL: this version speaks http/protobuf; set it to that, and "
            "the endpoint to the collector's port for HTTP (4318 as a rule, where gRPC has 4317); "
            "no traces are sent there"
        )
    ]
    traces = {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"}
    assert read_telemetry({**SINK, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol, **traces})[0]


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4318"}, "the endpoint of OTLP is no URL"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://[::1"}, "the endpoint of OTLP is no URL"),
        ({**SINK, "OTEL_TRACES_EXPORTER": "zipkin"}, "1 of its names are not otlp or console"),
    ],
)
def test_what_has_no_effect_is_told(environ: dict[str, str], said: str) -> None:
    _, notes = read_telemetry(environ)
    assert len(notes) == 1
    assert said in notes[0]
    assert "sesame" not in notes[0]


@pytest.mark.parametrize(
    ("given", "kept"), [("b3", "tracecontext"), ("b3, none", "none"), ("baggage,jaeger", "baggage")]
)
def test_propagators_that_are_not_there_do_not_end_the_process(given: str, kept: str) -> None:
    environ = {"OTEL_PROPAGATORS": given}
    assert "left out" in drop_unknown_propagators(environ)
    assert environ == {"OTEL_PROPAGATORS": kept}
    assert not drop_unknown_propagators(environ)
    assert not drop_unknown_propagators({})
