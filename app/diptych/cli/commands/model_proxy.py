"""`diptych model-proxy`: the process of a ModelAPI's proxy, which the operator starts."""

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer

from diptych.core.errors import ConfigError

PROXY_CONFIG = "DIPTYCH_PROXY_CONFIG"


def model_proxy(
    host: Annotated[str, typer.Option(help="The address to listen at.")] = "::",
) -> None:
    """Pass the requests of Agents on to a ModelAPI's endpoint.

    DIPTYCH_PROXY_CONFIG names the folder with proxy.json, which the operator writes.
    """
    from diptych.cli.commands.serve import loop_factory
    from diptych.manifest.environment import process_settings
    from diptych.model_proxy.config import config_file
    from diptych.model_proxy.process import serve_model_proxy
    from diptych.serve.logs import set_up_logging
    from diptych.serve.process import ListenAddress, Sockets

    folder = os.environ.get(PROXY_CONFIG, "").strip()
    if not folder:
        raise ConfigError(f"{PROXY_CONFIG}: is required: the folder with proxy.json")
    settings = process_settings(os.environ)
    set_up_logging(settings.log_level, settings.log_format)
    config = config_file(Path(folder))
    sockets = Sockets(ListenAddress(host, settings.port, "PORT"), 1)
    metrics = None
    if settings.metrics_port is not None:
        metrics = Sockets(ListenAddress(host, settings.metrics_port, "METRICS_PORT"), 1)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serve_model_proxy(config, sockets, metrics, settings))
