"""Asks servers many things, each server one thing at a time, and gives the replies in order.

Nothing is asked twice: a server on its own gives the same reply to the same request, so replies are
kept for this process. Nor is more asked than a judgment needs: where nothing that may still come
changes it, a reply is read no further.
"""

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

from bench.models.server import ModelServer

Messages = Sequence[dict[str, Any]]
IsSettled = Callable[[str], bool]
SEED = 1
MAX_TOKENS = 80  # of a reply that is measured; this model seldom stops by itself
_whole: dict[tuple[str, str], str] = {}  # replies by template and request


def replies(
    servers: Sequence[ModelServer],
    requests: Sequence[Messages],
    *,
    temperature: float = 0,
    seed: int = SEED,
    settled: Sequence[IsSettled] | None = None,
) -> list[str]:
    """Give the reply to each request, whichever server it came from.

    `settled` has for each of them what says that enough of its reply is there.
    """
    free: SimpleQueue[ModelServer] = SimpleQueue()
    for server in servers:
        free.put(server)
    sampled = {"temperature": temperature, "seed": seed, "max_tokens": MAX_TOKENS}

    def ask(place: int) -> str:
        server = free.get()
        try:
            body = {"messages": requests[place], **sampled}
            return _reply(server, body, settled[place] if settled else None)
        finally:
            free.put(server)

    with ThreadPoolExecutor(len(servers)) as threads:
        return list(threads.map(ask, range(len(requests))))


def _reply(server: ModelServer, body: dict[str, Any], is_settled: IsSettled | None) -> str:
    key = server.template, json.dumps(body, sort_keys=True)
    if key in _whole:
        return _whole[key]
    said = server.reply(body, is_settled)
    if is_settled is None:
        _whole[key] = said
    return said
