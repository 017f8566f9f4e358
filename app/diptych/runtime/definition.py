"""What the manifest says of every run of an agent, and the catalog that a run gets at its start.

Not here: the tools and agents themselves (`adapters`).
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from diptych.loop.catalog import Catalog
from diptych.loop.codec import catalog_blob
from diptych.loop.events import LoopSettings, Offered
from diptych.loop.prompt import system_prompt
from diptych.ports.event_log import EventLog
from diptych.runtime.effects import Backends


@dataclass(frozen=True, slots=True)
class AgentDefinition:
    """What the manifest says of every run. `deadline` is in seconds, None for no limit.

    `read_instructions` reads the instructions at each run's start, if they are in a file that may
    change; None from it means that there are none now, and `instructions` hold. `max_runs` bounds
    the waiting and executing runs of a process, all sessions together.
    """

    instructions: str = ""
    settings: LoopSettings = field(default_factory=LoopSettings)
    deadline: float | None = None
    max_runs: int = 1_000
    read_instructions: Callable[[], str | None] | None = None

    @property
    def current_instructions(self) -> str:
        return (self.read_instructions and self.read_instructions()) or self.instructions


class CatalogRecorder:
    """Takes the catalog as it is when a run starts, and stores it once for many runs."""

    def __init__(self, definition: AgentDefinition, backends: Backends, log: EventLog) -> None:
        self._definition = definition
        self._backends = backends
        self._log = log
        self._basis: tuple[str, Catalog] | None = None
        self._offered: tuple[Offered, bytes] | None = None  # made of `_basis`

    async def current(self) -> Offered:
        """Give the catalog, prompt and settings for a run that starts now. Raises `StoreError`.

        The prompt is written again only when something has changed.
        """
        tools, servers = self._backends.tools.snapshot()
        agents, missing = self._backends.agents.snapshot()
        instructions = self._definition.current_instructions
        basis = instructions, Catalog(tools, agents, (*servers, *missing))
        if self._offered is None or self._basis != basis:
            self._basis, (_, catalog) = basis, basis
            prompt = system_prompt(instructions, catalog)
            self._offered = catalog_blob(catalog, prompt, self._definition.settings)
        offered, blob = self._offered
        await self._log.put_blob(offered.key, blob)
        return offered
