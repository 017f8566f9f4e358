"""Asks servers many things, each server one thing at a time, and gives the replies in order.

Nothing is asked twice (`kept_replies`). Nor is more asked than a judgment needs: where nothing that
may still come changes it, a reply is read no further.
"""

import functools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

from bench.models.kept_replies import FOLDER, KeptReplies, key_of
from bench.models.questions import Question
from bench.models.server import ModelServer

Messages = Sequence[dict[str, Any]]
SEED = 1
MAX_TOKENS = 80  # of a reply that is measured; this model seldom stops by itself


def replies(
    servers: Sequence[ModelServer],
    requests: Sequence[Messages],
    *,
    temperature: float = 0,
    seed: int = SEED,
    judged_by: Sequence[Question] | None = None,
) -> list[str]:
    """Give the reply to each request, whichever server it came from.

    `judged_by` has the question of each: then a reply is read until nothing changes its judgment.
    """
    free: SimpleQueue[ModelServer] = SimpleQueue()
    for server in servers:
        free.put(server)
    sampled = {"temperature": temperature, "seed": seed, "max_tokens": MAX_TOKENS}

    def ask(place: int) -> str:
        server = free.get()
        try:
            question = judged_by[place] if judged_by else None
            return _reply(server, {"messages": requests[place], **sampled}, question)
        finally:
            free.put(server)

    with ThreadPoolExecutor(len(servers)) as threads:
        return list(threads.map(ask, range(len(requests))))


def _reply(server: ModelServer, body: dict[str, Any], question: Question | None) -> str:
    kept = kept_replies()
    whole_key = key_of(server.identity, body, ())
    key = key_of(server.identity, body, question.words) if question else whole_key
    for known in (whole_key, key):
        if (said := kept.find(known)) is not None:
            return said
    said = server.reply(body, question and question.is_settled)
    kept.add(key, said)
    return said


@functools.cache
def kept_replies() -> KeptReplies:
    return KeptReplies(FOLDER)
