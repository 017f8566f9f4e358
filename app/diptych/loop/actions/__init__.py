"""What a model's reply asks for (loop.md §3): pure, from text to calls.

`parsing` is the way in; `reading` finds JSON in text, by one pass over `brackets`, decoded by
`strict_json`; `arguments` holds them against schemas; `references` are `${id.path}`.
"""

from diptych.loop.actions.extraction import ActionError, ActionErrorType, strip_lead
from diptych.loop.actions.parser import Actions, actions_of, parse

__all__ = ["ActionError", "ActionErrorType", "Actions", "actions_of", "parse", "strip_lead"]
