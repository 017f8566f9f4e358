"""Where a hook is asked, if a manifest says it by `on` in place of `at`.

YAML 1.1 takes `on` for true, also as the name of a field (decision 160). People write it all the
same, so files that hold it are understood here; kubectl cannot, and is told of in a note.
"""

from collections.abc import Iterator
from typing import Any

_ON = (True, "on")


def read_hook_points(content: dict[str, Any]) -> Iterator[str]:
    """Rename each `on` of `spec.hooks` to `at`, in place; give a note for each."""
    spec = content.get("spec")
    hooks = spec.get("hooks") if isinstance(spec, dict) else None
    for number, hook in enumerate(hooks if isinstance(hooks, list) else ()):
        if not isinstance(hook, dict) or "at" in hook:
            continue
        if key := next((key for key in _ON if key in hook), None):
            hook["at"] = hook.pop(key)
            yield f"spec.hooks[{number}].on is read as at; kubectl takes on for true: write at"
