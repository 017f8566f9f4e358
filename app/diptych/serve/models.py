"""Which model an agent asks: a script, a Python object, or an endpoint."""

from collections.abc import Sequence

import aiohttp

from diptych.core.errors import ConfigError
from diptych.manifest.settings import AgentConfig
from diptych.models.chat_model import ChatModel, ModelObserver
from diptych.models.connection import with_proxies
from diptych.models.scripted import ScriptedModel, read_script, script_problems
from diptych.ports import Model


def check_mock_scripts(configs: Sequence[AgentConfig]) -> None:
    """Check every agent's script. Raises `ConfigError` with a line for each that cannot be read."""
    problems = [
        problem
        for config in configs
        if config.mock_responses is not None
        for problem in script_problems(config.mock_source, config.mock_responses)
    ]
    if problems:
        raise ConfigError(*problems)


def in_process_name(config: AgentConfig, model: Model | None) -> str | None:
    """Name the model that is no endpoint: a script, or a Python object. None: it is one."""
    if config.mock_responses is not None:
        return "DEBUG_MOCK_RESPONSES"
    return None if model is None else type(model).__name__


def agent_model(
    config: AgentConfig,
    http: aiohttp.ClientSession,
    model: Model | None,
    observe: ModelObserver,
) -> Model:
    """Make what asks an agent's model: its script, a Python object, or its endpoint.

    Raises `ConfigError` if there is none.
    """
    if config.mock_responses is not None:
        return ScriptedModel(read_script(config.mock_responses))
    if model is not None:
        return model
    if config.model is None:
        raise ConfigError(f"{config.name}: a model is missing")
    return ChatModel(http, with_proxies(config.model), observe=observe)
