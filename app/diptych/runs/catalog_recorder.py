"""Takes a run's catalog and prompts at its start, and stores them once for many runs."""

from dataclasses import replace

from diptych.core.catalog import SHARE, Catalog, Tool, shorter_catalogs
from diptych.core.codec import catalog_blob
from diptych.core.context_window import ContextWindow
from diptych.core.events import CallFormat, Offered
from diptych.core.prompt import native_system_prompt, system_prompt
from diptych.core.run_settings import RunSettings
from diptych.core.tokens import weight
from diptych.ports import Clock, Model
from diptych.ports.stores import EventLog
from diptych.runs.backends import Backends, RunModel
from diptych.runs.definition import AgentDefinition


def starting_format(settings: RunSettings, model: Model) -> CallFormat:
    """Return the call format of a new run."""
    match settings.action_format:
        case "auto":
            return "json" if model.takes_tools is False else "native"
        case call_format:
            return call_format


class CatalogRecorder:
    """Takes a snapshot of the catalog when a run starts, and stores it once for many runs."""

    def __init__(
        self, definition: AgentDefinition, backends: Backends, log: EventLog, clock: Clock
    ) -> None:
        self._definition = definition
        self._backends = backends
        self._log = log
        self._clock = clock
        self._window = ContextWindow(definition.context_max_tokens)
        self._model = RunModel(backends.model, definition.settings)
        self._basis: tuple[str, Catalog, float, RunSettings] | None = None
        self._offered: tuple[Offered, bytes] | None = None  # made of `_basis`

    async def offered_now(
        self, model: RunModel | None = None, callers: tuple[Tool, ...] = ()
    ) -> Offered:
        """Return the event that begins a run: its catalog, prompt and settings.

        The prompt is rebuilt only after a change; a new `model` may have another context window.
        `callers` are the tools of the run's caller. Raises `StoreError`.
        """
        if model and model is not self._model:
            self._model, self._window = model, ContextWindow(self._definition.context_max_tokens)
        settings = self._model.settings
        tools, servers = self._backends.tools.snapshot()
        self._backends.tools.retry_unavailable()
        agents, missing = self._backends.agents.snapshot()
        instructions = self._definition.current_instructions
        max_weight = self._window.weight(SHARE)
        catalog = Catalog(tools, agents, (*servers, *missing))
        basis = instructions, catalog, max_weight, settings
        if callers:  # no other run may have these
            with_callers = replace(catalog, tools=(*catalog.tools, *callers))
            offered, blob = _blob(instructions, with_callers, max_weight, settings)
        else:
            if self._offered is None or self._basis != basis:
                self._basis = basis
                self._offered = _blob(*basis)
            offered, blob = self._offered
        await self._log.put_blob(offered.key, blob)
        return replace(
            offered,
            nonce=self._clock.token()[-8:],
            action_format=starting_format(settings, self._model.model),
            window=self._window,
        )

    def learn(self, window: ContextWindow, model: Model) -> None:
        """Remember what a run learned of its model's context window, for later runs."""
        if model is self._model.model:
            self._window = self._window.joined(window)


def _blob(
    instructions: str, catalog: Catalog, max_weight: float, settings: RunSettings
) -> tuple[Offered, bytes]:
    prompt = _fitting_prompt(instructions, catalog, max_weight)
    is_json = settings.action_format == "json"
    native = "" if is_json else native_system_prompt(instructions, catalog)
    return catalog_blob(catalog, prompt, settings, native)


def _fitting_prompt(instructions: str, catalog: Catalog, max_weight: float) -> str:
    """Return the system prompt, with a shortened catalog if it exceeds the weight `max_weight`."""
    prompts = (system_prompt(instructions, shorter) for shorter in shorter_catalogs(catalog))
    written = next(prompts)
    while weight(written) > max_weight and (shorter := next(prompts, None)) is not None:
        written = shorter
    return written
