"""The metrics of models: attempts by model, endpoint and outcome, with labels that are bounded."""

from diptych.telemetry.metrics import Metrics, render


def lines(metrics: Metrics) -> list[str]:
    text = render({"": metrics.collect(0, 0)})[0].decode()
    return [line for line in text.splitlines() if line.startswith("diptych_model_")]


def counted(metrics: Metrics) -> set[str]:
    return {line for line in lines(metrics) if "_created" not in line}


def test_attempts_are_counted_with_the_fallback_that_answered() -> None:
    metrics = Metrics()
    metrics.observe_model("m", "http://a", "model_timeout")
    metrics.observe_model("n", "http://b", "ok")
    metrics.observe_model("n", "http://b", "ok")
    metrics.observe_model("n", "http://b", "cancelled")
    assert counted(metrics) == {
        'diptych_model_calls_total{endpoint="http://a",model="m",outcome="error"} 1.0',
        'diptych_model_calls_total{endpoint="http://b",model="n",outcome="ok"} 2.0',
        'diptych_model_calls_total{endpoint="http://b",model="n",outcome="cancelled"} 1.0',
        'diptych_model_errors_total{reason="model_timeout"} 1.0',
    }
