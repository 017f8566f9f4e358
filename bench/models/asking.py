"""Asks servers many things, each server one thing at a time, and gives the replies in order."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

from bench.models.server import SEED, ModelServer

Messages = Sequence[dict[str, Any]]


def replies(
    servers: Sequence[ModelServer],
    requests: Sequence[Messages],
    *,
    temperature: float = 0,
    seed: int = SEED,
) -> list[str]:
    """Give the reply to each request, whichever server it came from."""
    free: SimpleQueue[ModelServer] = SimpleQueue()
    for server in servers:
        free.put(server)

    def ask(messages: Messages) -> str:
        server = free.get()
        try:
            return server.reply(messages, temperature=temperature, seed=seed)
        finally:
            free.put(server)

    with ThreadPoolExecutor(len(servers)) as threads:
        return list(threads.map(ask, requests))
