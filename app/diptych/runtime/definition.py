"""What the manifest says of every run, and what a run is offered when it starts.

Not here: the tools and agents themselves (`adapters`).
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from diptych.loop.catalog import Catalog
from diptych.loop.codec import catalog_blob
from diptych.loop.events import LoopSettings, Offered
from diptych.loop.prompt import system_prompt
from diptych.ports import EventLog
from diptych.runtime.effects import Backends


@dataclass(frozen=True, slots=True)
class AgentDefinition:
    """What the manifest says of every run of an agent; `seconds` is its `loop.deadline`.

    `newer` reads the instructions anew for each run, if they stand in a file that may change.
    """

    instructions: str = ""
    settings: LoopSettings = field(default_factory=LoopSettings)
    seconds: float | None = 300.0
    max_runs: int = 1_000  # queued and running, all sessions together
    newer: Callable[[], str | None] | None = None

    @property
    def current_instructions(self) -> str:
        return (self.newer and self.newer()) or self.instructions


class CatalogRecorder:
    """Takes the offers as they are when a run starts, and keeps them for its replay."""

    def __init__(self, charter: AgentDefinition, outside: Backends, log: EventLog) -> None:
        self._charter = charter
        self._outside = outside
        self._log = log
        self._basis: tuple[str, Catalog] | None = None
        self._made: tuple[Offered, bytes] | None = None  # of that basis

    async def now(self) -> Offered:
        """Give the offers of a run that starts now.

        What has not changed is not put into words again. Raises `StoreError`.
        """
        tools, servers = self._outside.tools.snapshot()
        agents, missing = self._outside.agents.snapshot()
        basis = self._charter.current_instructions, Catalog(tools, agents, (*servers, *missing))
        if self._made is None or self._basis != basis:
            instructions, catalog = self._basis = basis
            self._made = catalog_blob(
                catalog, system_prompt(instructions, catalog), self._charter.settings
            )
        offered, blob = self._made
        await self._log.put_blob(offered.key, blob)
        return offered
