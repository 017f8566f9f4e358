"""A small MCP server with the tools of the demo and the examples.

`diptych demo-tools` runs it over stdio. Your own may be written in any language and have its own
URL.
"""

from typing import Annotated, TypedDict

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from pydantic import Field

from diptych.demo.arithmetic import evaluate

_READ_ONLY = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)

_PLANETS = {
    "mercury": (57.9, 4222.6, 88.0),
    "venus": (108.2, 2802.0, 224.7),
    "earth": (149.6, 24.0, 365.2),
    "mars": (228.0, 24.7, 687.0),
    "jupiter": (778.5, 9.9, 4331.0),
    "saturn": (1432.0, 10.7, 10747.0),
    "uranus": (2867.0, 17.2, 30589.0),
    "neptune": (4515.0, 16.1, 59800.0),
}
"""Distance from the Sun, day and year, from NASA's planetary fact sheet."""


class Planet(TypedDict):
    """The data of a planet."""

    name: str
    million_km_from_sun: float
    hours_of_a_day: float
    days_of_a_year: float


def tool_server() -> MCPServer:
    """Make the server, with its three tools."""
    server = MCPServer("demo-tools")
    server.add_tool(echo, annotations=_READ_ONLY)
    server.add_tool(calculate, annotations=_READ_ONLY)
    server.add_tool(planet, annotations=_READ_ONLY)
    return server


def echo(text: Annotated[str, Field(description="What to say again.")]) -> str:
    """Say a text again, unchanged."""
    return text


def calculate(
    expression: Annotated[str, Field(description="Such as (1 + 2) * 3; knows + - * / ** ( ).")],
) -> int | float:
    """Work out an arithmetic expression."""
    try:
        return evaluate(expression)
    except ValueError as error:
        raise ToolError(
            str(error)
        ) from error  # only the message of a `ToolError` reaches the model


def planet(name: Annotated[str, Field(description="Such as Mars.")]) -> Planet:
    """Look up a planet of the solar system."""
    key = name.strip().lower()
    if key not in _PLANETS:
        raise ToolError(f"there is no planet {name!r}; there is {', '.join(_PLANETS)}")
    distance, day, year = _PLANETS[key]
    return Planet(
        name=key.capitalize(),
        million_km_from_sun=distance,
        hours_of_a_day=day,
        days_of_a_year=year,
    )
