"""Traces of runs, for OpenTelemetry: what happened in a run as spans, sent by OTLP.

`ProcessTraces` loads the SDK, for all agents of a process; nobody imports it unless the environment
asks for traces. Metrics stay Prometheus' (`adapters.metrics`), logs stay logs.
"""
