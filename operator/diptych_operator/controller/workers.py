"""Takes owners from the work queue and has each reconciled by the reconciler of its kind."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from diptych_operator.controller.metrics import Metrics
from diptych_operator.controller.work_queue import WorkQueue
from diptych_operator.kubernetes.errors import ApiError, NamespaceTerminatingError
from diptych_operator.resources.kinds import Kind, NamespacedName, ObjectKey

WORKERS = 8
BUG_DELAY = 30.0
"""Seconds after which an owner is tried again whose reconcile met a bug of the operator."""

Reconcile: TypeAlias = Callable[[NamespacedName], Awaitable[float | None]]
"""Reconciles an owner; returns the seconds after which to reconcile it again, or None.

Raises `ApiError` if the API failed and a retry may help.
"""
_BUGS = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)
_log = logging.getLogger(__name__)


class Workers:
    """Reconciles queued owners, `WORKERS` at a time."""

    def __init__(
        self, queue: WorkQueue, reconcilers: Mapping[Kind, Reconcile], metrics: Metrics
    ) -> None:
        self._queue = queue
        self._reconcilers = reconcilers
        self._metrics = metrics

    def start(self) -> list["asyncio.Task[None]"]:
        """Start all workers; the caller cancels their tasks."""
        return [asyncio.create_task(self._run(), name=f"worker {n}") for n in range(WORKERS)]

    async def _run(self) -> None:
        while True:
            key = await self._queue.get()
            started = time.monotonic()
            result = await self._process(key)
            self._metrics.count_reconcile(result, time.monotonic() - started)

    async def _process(self, key: ObjectKey) -> str:
        """Reconcile one owner; return the result for the metrics."""
        try:
            requeue_after = await self._reconcilers[key.kind](key.namespaced_name)
        except NamespaceTerminatingError as error:  # nothing can be made there any more
            _log.debug("%s: %s", key, error)
            self._queue.done(key)
            return error.result
        except ApiError as error:
            delay = self._queue.retry(key, error.retry_after)
            _log.warning("%s: %s; trying again in %g s", key, error, delay)
            return error.result
        except _BUGS:  # an object of a shape that the code does not expect
            _log.exception("%s: a bug in the operator; trying again", key)
            self._queue.retry(key, BUG_DELAY)
            return "bug"
        self._queue.done(key)
        if requeue_after is not None:
            self._queue.add_after(key, requeue_after)
        return "ok"
