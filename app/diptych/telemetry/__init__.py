"""OpenTelemetry traces of runs, exported over OTLP, and Prometheus metrics.

The OpenTelemetry SDK is imported only if the environment enables traces (`process_traces`).
"""
