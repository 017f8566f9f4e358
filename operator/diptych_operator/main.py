"""The operator's process: settings in, logs configured, one term after another, exit code out."""

import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime

from diptych_operator.controller.metrics import Metrics
from diptych_operator.kubernetes.connection import find_connection
from diptych_operator.kubernetes.errors import UnavailableError
from diptych_operator.process.settings import read_settings
from diptych_operator.process.settings_files import SettingsError
from diptych_operator.process.term import Operator, end_tasks

_log = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the operator until a signal ends it; return the exit code."""
    try:
        settings = read_settings(sys.argv[1:] if arguments is None else arguments, os.environ)
        connection = find_connection()
    except (SettingsError, UnavailableError) as error:
        print(f"diptych-operator: {error}", file=sys.stderr)  # noqa: T201
        return 2
    _configure_logging(settings.log_level, settings.log_format)
    operator = Operator(settings, connection, Metrics())
    while asyncio.run(_run_alone(operator)):
        time.sleep(1)
    return 0


async def _run_alone(operator: Operator) -> bool:
    """Run a term; end the process if a task outlives it, which might write without the Lease."""
    try:
        return await operator.run_term()
    finally:
        own = asyncio.current_task()
        if left := await end_tasks([task for task in asyncio.all_tasks() if task is not own]):
            _log.critical("%d tasks do not end, so the process ends", len(left))
            os._exit(1)


def _configure_logging(level: str, log_format: str) -> None:
    """Log to stderr; kopf's records only from WARNING up, unless `level` is DEBUG."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if log_format == "json" else logging.Formatter(_TEXT))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    if level != "DEBUG":
        logging.getLogger("kopf").setLevel(logging.WARNING)


_TEXT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        content: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if change := getattr(record, "change", None):  # `controller.apply.log_change`
            content["change"] = change
        if record.exc_info:
            content["stack"] = self.formatException(record.exc_info)
        return json.dumps(content, ensure_ascii=False)
