"""Takes agents off the queue and reconciles them, a few at a time.

What goes wrong with one agent never stops the others: it is tried again later.
"""

import asyncio
import logging
import time

from diptych_operator.controller.metrics import Metrics
from diptych_operator.controller.reconciler import Reconciler
from diptych_operator.controller.work_queue import Due
from diptych_operator.kubernetes.errors import ClusterError
from diptych_operator.resources.kinds import Name

WORKERS = 8
BUG_SECONDS = 30.0

_BUGS = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)
_log = logging.getLogger(__name__)


class Work:
    """The workers of one queue."""

    def __init__(self, due: Due, reconciler: Reconciler, metrics: Metrics) -> None:
        self._due = due
        self._reconciler = reconciler
        self._metrics = metrics

    def start(self) -> list["asyncio.Task[None]"]:
        """Start all workers; the caller cancels them."""
        return [asyncio.create_task(self._run(), name=f"worker {n}") for n in range(WORKERS)]

    async def _run(self) -> None:
        while True:
            name = await self._due.take()
            began = time.monotonic()
            result = await self._one(name)
            self._metrics.reconciled(result, time.monotonic() - began)

    async def _one(self, name: Name) -> str:
        """Reconcile one agent; say how that ended."""
        try:
            again = await self._reconciler.reconcile(name)
        except ClusterError as error:
            delay = self._due.failed(name, error.retry_after)
            _log.warning("%s/%s: %s; trying again in %g s", *name, error, delay)
            return type(error).__name__.removesuffix("Error").lower()
        except _BUGS:  # an object of a shape that nobody thought of
            _log.exception("%s/%s: a bug in the operator; trying again", *name)
            self._due.failed(name, BUG_SECONDS)
            return "bug"
        self._due.done(name)
        if again is not None:
            self._due.add_later(name, again)
        return "ok"
