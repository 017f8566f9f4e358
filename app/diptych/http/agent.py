"""`/v1/agent`: what the agent is for, the models it asks, and what it can call now."""

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter

from diptych.access.caller import current_caller
from diptych.access.grants import Right
from diptych.http.agent_profile import AgentProfile
from diptych.http.bodies import json_router
from diptych.http.health import Readiness, unavailable_value
from diptych.http.openapi import reply

_SHOWN_KINDS = frozenset({"model", "server", "tool", "agent"})


def agent_routes(profile: AgentProfile, readiness: Callable[[], Readiness]) -> APIRouter:
    """Return the route that describes the agent."""
    router = json_router()

    @router.get("/v1/agent", **reply("Agent", "The agent."))
    async def read_agent() -> dict[str, Any]:
        """Read what the agent is for, the models it asks, and the tools and agents it can call.

        Callers who may `read` are told why something is unavailable, others only that it is.
        """
        offers = profile.catalog()
        fields = {"kind", "name"}
        if current_caller().may(Right.READ):
            fields.add("reason")
        missing = [unavailable_value(each) for each in readiness().unavailable]
        return {
            "object": "agent",
            "name": profile.name,
            "description": profile.description,
            "version": profile.version,
            "examples": profile.examples,
            "models": profile.models(),
            "tools": [
                {"name": name, "server": tool.server, "description": tool.description}
                for name, tool in offers.listed()
            ],
            "agents": [{"name": a.name, "description": a.description} for a in offers.agents],
            "unavailable": [
                {name: value for name, value in each.items() if name in fields}
                for each in missing
                if each["kind"] in _SHOWN_KINDS
            ],
        }

    return router
