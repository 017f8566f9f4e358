"""The other agents of an agent, if it has any."""

from typing import TYPE_CHECKING

from diptych.a2a.no_agents import NoAgents
from diptych.manifest.settings import AgentConfig

if TYPE_CHECKING:
    from diptych.a2a.agents import A2aAgents


def agent_client(config: AgentConfig, url: str) -> "A2aAgents | NoAgents":
    """Give what reaches them; `url` is where the agent itself is served."""
    if not config.agents:
        return NoAgents()
    from diptych.a2a.agents import A2aAgents  # noqa: PLC0415 - heavy, and only needed here

    return A2aAgents(config.agents, config.public_url or url, own_name=config.name)
