"""Traces of a process, if the environment configures them."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import aiohttp

from diptych.manifest.settings import AgentConfig
from diptych.manifest.telemetry import TelemetrySettings
from diptych.models.chat_model import ModelObserver
from diptych.models.connection import open_http_session
from diptych.runs.hooks import HookObserver
from diptych.runs.run_log import Observer
from diptych.serve.logs import show_trace_ids
from diptych.telemetry.attributes import TracedAgent
from diptych.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from diptych.telemetry.agent_traces import AgentTraces
    from diptych.telemetry.process_traces import ProcessTraces

_logger = logging.getLogger(__name__)


@asynccontextmanager
async def opened_traces(
    settings: TelemetrySettings | None,
) -> "AsyncIterator[ProcessTraces | None]":
    """Send the process's traces while the block lasts; yields None without traces.

    At the end the remaining spans are sent. Invalid settings are logged and never stop an agent.
    """
    traces = _traces(settings) if settings else None
    try:
        yield traces
    finally:
        if traces:
            await traces.aclose()


def traced_http_session(traces: "ProcessTraces | None") -> aiohttp.ClientSession:
    """Open the client for models; its requests are traced, if tracing is on."""
    return open_http_session([traces.http_spans()] if traces else ())


def _traces(settings: TelemetrySettings) -> "ProcessTraces | None":
    from diptych.telemetry.process_traces import ProcessTraces  # noqa: PLC0415 - heavy

    try:
        traces = ProcessTraces(settings)
    except (ValueError, RuntimeError, OSError, ImportError) as error:
        why = str(error).partition(" but got ")[0]  # no value of a variable is told
        _logger.error("no traces are sent: the settings OTEL_* cannot be used: %s", why)
        return None
    show_trace_ids(traces.current_ids)
    _logger.info("traces go to %s", settings.where)
    return traces


def agent_traces(
    traces: "ProcessTraces | None", config: AgentConfig, version: str, in_process_model: str | None
) -> "AgentTraces | None":
    """Return the tracer of an agent's runs, if tracing is on.

    `in_process_model` names a model that is not an endpoint.
    """
    if traces is None:
        return None
    model = None if in_process_model else config.model
    parameters = {"temperature": model.temperature, "max_tokens": model.max_tokens} if model else {}
    urls = {server.name: server.url for server in config.tools}
    agent = TracedAgent(
        config.name,
        config.description,
        version,
        model.name if model else in_process_model or "",
        model.endpoint if model else "",
        parameters,
        {name: url for name, url in urls.items() if url}
        | {peer.name: peer.url for peer in config.agents},
    )
    return traces.of_agent(agent)


def observers(
    metrics: Metrics, traces: "AgentTraces | None", process: "ProcessTraces | None"
) -> tuple[list[Observer], ModelObserver, HookObserver]:
    """Return the observers of records and notices, of model attempts, and of hooks.

    The metrics also count lost spans.
    """
    if traces is None or process is None:
        return [metrics.observe], metrics.observe_model, metrics.observe_hook
    metrics.add_lost_spans(process.lost_spans)

    def observe_model(model: str, endpoint: str, outcome: str) -> None:
        metrics.observe_model(model, endpoint, outcome)
        traces.observe_model(model, endpoint, outcome)

    def observe_hook(point: str, name: str, outcome: str, seconds: float) -> None:
        metrics.observe_hook(point, name, outcome, seconds)
        traces.observe_hook(point, name, outcome, seconds)

    return [metrics.observe, traces.observe], observe_model, observe_hook
