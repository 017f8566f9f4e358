"""Where a hook is asked, if a manifest says it by `on` in place of `at`.

kubectl reads `on` as true, also as the name of a field (decision 160). People write it all the
same, so files that hold it are understood here, with a note that kubectl does not.
"""

from collections.abc import Iterator
from typing import Any


def read_hook_points(content: dict[str, Any]) -> Iterator[str]:
    """Rename each `on` of `spec.hooks` to `at`, in place; give a note for each."""
    spec = content.get("spec")
    hooks = spec.get("hooks") if isinstance(spec, dict) else None
    for number, hook in enumerate(hooks if isinstance(hooks, list) else ()):
        if not isinstance(hook, dict) or "at" in hook:
            continue
        if "on" in hook:
            hook["at"] = hook.pop("on")
            yield f"spec.hooks[{number}].on is read as at; kubectl takes on for true: write at"
