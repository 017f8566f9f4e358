"""An agent of this process, as another one delegates to it (`in_process`)."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from diptych.runs.service import RunService


@dataclass(frozen=True, slots=True)
class LocalAgent:
    """`open` returns the agent's runs, and starts it if need be."""

    name: str
    description: str
    open: Callable[[], Awaitable[RunService]]
