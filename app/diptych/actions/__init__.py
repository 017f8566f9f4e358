"""What a model's reply asks for (loop.md §3): pure, from text to calls.

`parsing` is the way in; `reading` finds JSON in text, by one pass over `brackets`, decoded by
`strict_json`; `arguments` holds them against schemas; `references` are `${id.path}`.
"""

from diptych.actions.parsing import Actions, actions_of, parse
from diptych.actions.reading import ActionError, ActionErrorType, strip_lead

__all__ = ["ActionError", "ActionErrorType", "Actions", "actions_of", "parse", "strip_lead"]
