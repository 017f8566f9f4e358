"""Diptych runs AI agents: a two-phase loop with MCP tools and A2A delegation.

The public surface is what stands in `__all__`; everything else may change between releases.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diptych.library.agent import Agent, CallInfo, Deny, ResultInfo, RunError, RunInfo, StepInfo

__all__ = ["Agent", "CallInfo", "Deny", "ResultInfo", "RunError", "RunInfo", "StepInfo"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - what a module attribute is
    """Import the library's face when it is asked for: the CLI starts without it."""
    if name in __all__:
        from diptych.library import agent  # noqa: PLC0415

        return getattr(agent, name)
    raise AttributeError(f"module 'diptych' has no attribute {name!r}")
