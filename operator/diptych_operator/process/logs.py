"""The format of the operator's log: one line of text or JSON per record."""

import json
import logging
import sys
from datetime import UTC, datetime


def configure_logging(level: str, log_format: str) -> None:
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
        if change := getattr(record, "change", None):  # `controller.changes`
            content["change"] = change
        if record.exc_info:
            content["stack"] = self.formatException(record.exc_info)
        return json.dumps(content, ensure_ascii=False)
