"""Renders a run as JSON Lines on stdout, for programs."""

import sys

import orjson

from diptych.cli.notices import RECONNECTING, RETRYING_START
from diptych.cli.output.renderer import INTERRUPTIONS
from diptych.http.views import event_view, notice_view
from diptych.ports import Item, Notice


class JsonLines:
    """One JSON object per line, as `/v1/runs/{id}/events` gives it; fulfils `Renderer`.

    The command line's own notices go to stderr: they are no events of the run.
    """

    def render(self, item: Item) -> None:
        if isinstance(item, Notice) and item.type in {RETRYING_START, RECONNECTING}:
            sys.stderr.write(f"! {INTERRUPTIONS[item.type].format_map(item.fields)}\n")
            return
        view = notice_view(item) if isinstance(item, Notice) else event_view(item)
        sys.stdout.write(orjson.dumps(view).decode() + "\n")
        sys.stdout.flush()

    def refresh(self) -> None:
        """Do nothing: lines do not change with time."""
