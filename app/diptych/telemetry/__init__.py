"""Traces of runs for OpenTelemetry, sent by OTLP, and Prometheus metrics.

The SDK is imported only if the environment asks for traces (`process_traces`).
"""
