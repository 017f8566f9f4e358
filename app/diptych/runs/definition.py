"""The manifest's settings for every run of an agent, made by `manifest.resolver`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from diptych.core.run_settings import HookPoint, RunSettings
from diptych.ports import ValueProvider

HOOK_TIMEOUT: Final = 2.0  # seconds for a hook to answer

WhenBusy: TypeAlias = Literal["enqueue", "reject", "interrupt"]
"""How a busy session treats a new run: queue it, reject it, or cancel the earlier one."""


@dataclass(frozen=True, slots=True)
class AgentDefinition:
    """The manifest's settings for every run. `deadline` is in seconds, None for no limit.

    `read_instructions` reads the instructions from a file that may change, at each run's start; if
    it returns None, `instructions` apply. `max_runs` bounds the queued and executing runs of a
    process. `context_max_tokens` is the model's context window, None if unknown.
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
    """A hook's URL. `headers` and `signing_key` are read each time."""

    at: HookPoint
    url: str
    timeout: float = HOOK_TIMEOUT
    headers: Mapping[str, ValueProvider] = field(default_factory=dict)
    signing_key: ValueProvider | None = None
