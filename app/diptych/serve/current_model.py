"""The model of an agent's new runs, which may change while the process serves."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from diptych.core.catalog import Unavailable
from diptych.core.run_settings import RunSettings
from diptych.manifest.settings import AgentConfig, ModelConfig
from diptych.models.chat_model import ChatModel
from diptych.ports import Model, ValueProvider
from diptych.runs.backends import RunModel

_logger = logging.getLogger(__name__)


class CurrentModel:
    """Follows the agent's model source; runs under way keep the model that they have.

    `make` builds the model of a configuration, `settings` are those of new runs, and `on_change`
    receives new terms.
    """

    def __init__(
        self,
        config: AgentConfig,
        settings: RunSettings,
        make: Callable[[AgentConfig], Model],
        on_change: Callable[[AgentConfig], None],
    ) -> None:
        self._config = config
        self._file = config.model_file
        self._make = make
        self._on_change = on_change
        self._newest = self._file.start if self._file else config
        self._of_runs = RunModel(make(config), settings)
        self._is_watching = False
        self._watching: asyncio.Task[None] | None = None

    def of_runs(self) -> RunModel:
        """Return the model and settings of a run that begins now."""
        if self._file and (newest := self._file.current()) is not self._newest:
            self._switch(newest)
        return self._of_runs

    @property
    def model(self) -> Model:
        return self.of_runs().model

    @property
    def settings(self) -> RunSettings:
        return self.of_runs().settings

    @property
    def endpoints(self) -> tuple[ModelConfig, ...]:
        """The configured model and its fallbacks; empty without any."""
        self.of_runs()
        model = self._config.model
        return (model, *model.fallbacks) if model else ()

    @property
    def mounted_keys(self) -> Mapping[str, ValueProvider]:
        """All keys of the agent that are read from files."""
        self.of_runs()
        return self._config.mounted_keys

    def unavailable(self) -> tuple[Unavailable, ...]:
        model = self.model
        return model.watch.unavailable() if isinstance(model, ChatModel) else ()

    def notes(self) -> Iterator[str]:
        if self._file and self._file.problem:
            yield self._file.problem

    def watch(self) -> None:
        """Watch the model's endpoints from now on."""
        self._is_watching = True
        self.stop_watching()
        if isinstance(model := self._of_runs.model, ChatModel):
            self._watching = asyncio.create_task(model.watch.run())

    def stop_watching(self) -> None:
        if self._watching:
            self._watching.cancel()

    def _switch(self, newest: AgentConfig) -> None:
        self._newest = newest
        self._config = replace(self._config, model=newest.model, mounted_keys=newest.mounted_keys)
        changed = newest.definition.settings
        settings = replace(
            self._of_runs.settings, prices=changed.prices, action_format=changed.action_format
        )
        self._of_runs = RunModel(self._make(self._config), settings)
        self._on_change(newest)
        if self._is_watching:
            self.watch()
        name = newest.model.name if newest.model else ""
        _logger.info("agent %s: new runs use model %s", self._config.name, name)
