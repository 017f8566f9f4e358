"""The hooks of an agent: those of its manifest, then those of Python.

Not here: reaching them (`adapters.http_hooks`), asking them (`runtime.hooks`).
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from diptych.config.settings import AgentConfig
from diptych.runtime.hooks import HookObserver, Hooks

if TYPE_CHECKING:
    from diptych.adapters.http_hooks import HttpHooks


def http_hooks(config: AgentConfig) -> "HttpHooks | None":
    """Give the hooks that a manifest names, if any."""
    if not config.hooks:
        return None
    from diptych.adapters.http_hooks import HttpHooks  # noqa: PLC0415 - heavy, and rarely needed

    return HttpHooks(config.name, config.hooks)


def all_hooks(of_manifest: "HttpHooks | None", of_python: Hooks, observe: HookObserver) -> Hooks:
    """Give all hooks, in the order in which they are asked."""
    first = of_manifest.hooks if of_manifest else ()
    return replace(of_python, hooks=(*first, *of_python.hooks), observe=observe)
