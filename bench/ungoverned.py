"""`diptych serve` without the governor: nothing is counted, sized or refused for want of memory.

Beside the usual one it shows what the governor costs.
"""

import runpy
import sys
from typing import Any

from diptych.net import memory_budget


def _nothing(*_: Any) -> int:
    return 0


class _Share:
    """Holds nothing."""

    size = 0
    is_beyond = False
    admit = grow = release = _nothing


def _share(*_: Any) -> Any:
    return _SHARE


class _PassOn:
    """In place of the guard that counts bodies."""

    def __init__(self, app: Any, **_: Any) -> None:
        self._app = app

    async def __call__(self, *arguments: Any) -> None:
        await self._app(*arguments)


_SHARE = _Share()
for name in ("text_size", "json_size", "record_size", "message_size"):
    setattr(memory_budget, name, _nothing)  # before anything imports them
memory_budget.current_share = _share
memory_budget.MemoryBudget.share = _share  # type: ignore[method-assign]
memory_budget.MemoryBudget.check = _nothing  # type: ignore[assignment,method-assign]

from diptych.http import memory_guard  # noqa: E402 - the sizes must be replaced first

memory_guard.MemoryGuard = _PassOn  # type: ignore[assignment,misc]
sys.argv = ["diptych", *sys.argv[1:]]
runpy.run_module("diptych", run_name="__main__", alter_sys=True)
