"""What the manifest says of every run of an agent; `config.resolver` makes it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from diptych.core.run_settings import HookPoint, RunSettings
from diptych.ports import ValueProvider

HOOK_TIMEOUT: Final = 2.0  # of a hook's answer

WhenBusy: TypeAlias = Literal["enqueue", "reject", "interrupt"]
"""What becomes of a request while a run of its session has not ended: it waits its turn, it is
refused, or the other run is cancelled."""


@dataclass(frozen=True, slots=True)
class AgentDefinition:
    """What the manifest says of every run. `deadline` is in seconds, None for no limit.

    `read_instructions` reads the instructions at each run's start, if they are in a file that may
    change; None from it means that there are none now, and `instructions` hold. `max_runs` bounds
    the queued and executing runs of a process, all sessions together. `context_max_tokens` is the
    model's context window, None if nobody says.
    """

    instructions: str = ""
    settings: RunSettings = field(default_factory=RunSettings)
    deadline: float | None = None
    max_runs: int = 1_000
    read_instructions: Callable[[], str | None] | None = None
    context_max_tokens: int | None = None
    when_busy: WhenBusy = "enqueue"

    @property
    def current_instructions(self) -> str:
        return (self.read_instructions and self.read_instructions()) or self.instructions


@dataclass(frozen=True, slots=True)
class HookConfig:
    """An address that is asked about runs. `headers` and `signing_key` are read each time."""

    at: HookPoint
    url: str
    timeout: float = HOOK_TIMEOUT
    headers: Mapping[str, ValueProvider] = field(default_factory=dict)
    signing_key: ValueProvider | None = None
