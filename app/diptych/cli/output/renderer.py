"""The contract of a renderer: what shows a run while it happens."""

from collections.abc import Mapping
from typing import Protocol

from diptych.cli.notices import RECONNECTING, RETRYING_START
from diptych.ports import Item

REFRESH_SECONDS = 0.1

INTERRUPTIONS: Mapping[str, str] = {
    "model_wait": "{message}",
    RETRYING_START: "{message}; asking again",
    RECONNECTING: "{message}; picking the run up again",
    "handed_over": "the agent's pod is leaving, and hands the run over",
    "reset": "the agent's store has lost the end of this run; it goes on from event {last_seq}",
}
"""Messages for the notices of waits and interruptions, by their type; fields are the notice's."""


class Renderer(Protocol):
    """Shows the items of a run, which it is given in order."""

    def render(self, item: Item) -> None: ...

    def refresh(self) -> None:
        """Redraw what changes with time alone; called every `REFRESH_SECONDS`."""
        ...
