"""Diptych runs AI agents: a two-phase loop with MCP tools and A2A delegation.

The public surface is `__all__` and `diptych.testing`; all else may change between releases.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diptych.core.codec import Record
    from diptych.core.errors import (
        AlreadyAnswered,
        AlreadyDecided,
        ApprovalNotFound,
        ConfigError,
        DiptychError,
        InputNotFound,
        InvalidRequest,
        ModelError,
        NotResumable,
        RequestError,
        RunEnded,
        RunNotFound,
        StoreError,
    )
    from diptych.core.messages import Message, NativeCall, Usage
    from diptych.core.model_request import FunctionTool, ModelRequest
    from diptych.library.agent import Agent
    from diptych.library.events import (
        AnswerEvent,
        Approval,
        ApprovalDecisionEvent,
        ApprovalRequestEvent,
        DelegationEvent,
        DelegationResultEvent,
        Event,
        InputAnswerEvent,
        InputRequestEvent,
        OtherEvent,
        ReasoningEvent,
        RunEndEvent,
        RunStartEvent,
        SubAgentEvent,
        TextEvent,
        TextResetEvent,
        ToolCallEvent,
        ToolProgressEvent,
        ToolResultEvent,
        TurnEndEvent,
        TurnStartEvent,
        WaitEvent,
    )
    from diptych.library.following import Decision
    from diptych.library.hooks import CallInfo, Deny, ResultInfo, RunInfo, StepInfo
    from diptych.library.models import Model, ModelAPI, TextModel
    from diptych.library.results import RunError, RunResult
    from diptych.library.tools import tool
    from diptych.ports import Delta, Reply

__all__ = [
    "Agent",
    "AlreadyAnswered",
    "AlreadyDecided",
    "AnswerEvent",
    "Approval",
    "ApprovalDecisionEvent",
    "ApprovalNotFound",
    "ApprovalRequestEvent",
    "CallInfo",
    "ConfigError",
    "Decision",
    "DelegationEvent",
    "DelegationResultEvent",
    "Delta",
    "Deny",
    "DiptychError",
    "Event",
    "FunctionTool",
    "InputAnswerEvent",
    "InputNotFound",
    "InputRequestEvent",
    "InvalidRequest",
    "Message",
    "Model",
    "ModelAPI",
    "ModelError",
    "ModelRequest",
    "NativeCall",
    "NotResumable",
    "OtherEvent",
    "ReasoningEvent",
    "Record",
    "Reply",
    "RequestError",
    "ResultInfo",
    "RunEndEvent",
    "RunEnded",
    "RunError",
    "RunInfo",
    "RunNotFound",
    "RunResult",
    "RunStartEvent",
    "StepInfo",
    "StoreError",
    "SubAgentEvent",
    "TextEvent",
    "TextModel",
    "TextResetEvent",
    "ToolCallEvent",
    "ToolProgressEvent",
    "ToolResultEvent",
    "TurnEndEvent",
    "TurnStartEvent",
    "Usage",
    "WaitEvent",
    "tool",
]

_MODULES = (  # the first that has a name is the one that defines it for users
    "core.errors",
    "core.messages",
    "core.model_request",
    "library.tools",
    "library.models",
    "library.events",
    "core.codec",
    "ports",
    "library.results",
    "library.hooks",
    "library.following",
    "library.agent",
)


def __getattr__(name: str) -> Any:  # noqa: ANN401 - what a module attribute is
    """Import a public name when it is asked for: the CLI starts without the library."""
    if name in __all__:
        for module in _MODULES:
            found = vars(import_module(f"diptych.{module}")).get(name)
            if found is not None:
                globals()[name] = found
                return found
    raise AttributeError(f"module 'diptych' has no attribute {name!r}")
