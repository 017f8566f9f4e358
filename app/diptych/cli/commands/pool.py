"""`diptych pool`: the process of an AgentPool, in the pods that the operator makes."""

import asyncio
import gc
import os
from pathlib import Path
from typing import Annotated

import typer

_FOLDER = Path("/etc/diptych/pool")
_ACCESS = Path("/etc/diptych/access/platform.json")


def pool(
    host: Annotated[str, typer.Option(help="The address to listen at; :: is all.")] = "::",
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="The port of the pool's door. Else PORT, else 8000."),
    ] = None,
    folder: Annotated[Path, typer.Option(help="The documents of its Agents.")] = _FOLDER,
    access: Annotated[Path, typer.Option(help="The access file of the pool itself.")] = _ACCESS,
) -> None:
    """Serve the Agents of a pool; the operator adds, changes and removes them."""
    gc.disable()  # imports leave no garbage; serving enables it again
    from diptych.cli.commands.serve import log_unknown_telemetry, loop_factory
    from diptych.manifest.environment import process_settings
    from diptych.serve.logs import set_up_logging
    from diptych.serve.pool import PoolSettings, serve_pool_until_signal
    from diptych.serve.process import ListenAddress, Sockets

    process = process_settings(os.environ)
    set_up_logging(process.log_level, process.log_format)
    log_unknown_telemetry()
    settings = PoolSettings(os.environ.get("DIPTYCH_POOL_NAME", "pool"), folder, access, host)
    sockets = Sockets(ListenAddress(host, process.port if port is None else port), 1)
    metrics = None
    if process.metrics_port is not None:
        metrics = Sockets(ListenAddress(host, process.metrics_port, "METRICS_PORT"), 1)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serve_pool_until_signal(settings, process, sockets, metrics))
