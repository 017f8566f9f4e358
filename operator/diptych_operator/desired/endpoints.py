"""The endpoints that pods may still ask after a change which does not replace them. Pure.

A ConfigMap that running pods read notes which URLs it has and which it had before, so that the
NetworkPolicy keeps both open.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from diptych_operator.resources.kinds import Object

_NOTE: Final = "diptych.dev/endpoints"
"""The annotation with the URLs now and before, as JSON."""


def noted(now: Sequence[str], before: Sequence[str]) -> dict[str, str]:
    """Return the annotation."""
    return {_NOTE: json.dumps({"now": list(now), "before": list(before)})}


def former_urls(live: Object | None, now: Sequence[str]) -> tuple[str, ...]:
    """Return the URLs before the last change; `live` is the ConfigMap as it is."""
    if live is None:
        return ()
    with suppress(ValueError, LookupError, TypeError):  # somebody has edited it
        note = json.loads((live["metadata"].get("annotations") or {})[_NOTE])
        return tuple(map(str, note["before" if note["now"] == list(now) else "now"]))
    return ()
