"""Every request of the loop against every published chat template: does it take them?

`POST /apply-template` renders a request without a model's work, or gives the template's refusal.
What is refused is sent again as the adapter does, in the dialect that it learns from the refusal.
"""

import functools
import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson

from bench.models.server import ModelServer, model_server, templates
from bench.models.stories import request_for_a_summary, requests_of, stories
from bench.report import table
from diptych.core.model_request import ModelRequest
from diptych.manifest.settings import ModelConfig
from diptych.models.dialect import Dialect
from diptych.models.encoding import encode_request, request_fields
from diptych.models.endpoint import MAX_ADAPTATIONS
from diptych.models.error_report import read_error

FAST_START = ("-c", "512", "--no-warmup", "-np", "1", "-t", "1")
AT_ONCE = 8  # templates: one waits for its server most of the time
_MODEL = ModelConfig("any", "http://127.0.0.1/v1")


def wanted(*, quick: bool) -> dict[str, ModelRequest]:
    """Give each different request of all stories, by the story that it is from.

    If `quick`, one request of each form: the roles, which messages are empty, and the calls.
    """
    found: dict[str, ModelRequest] = {}
    known = set[str]()
    for name, request in _all_requests():
        form = _form(request) if quick else _encoded(request, Dialect()).decode()
        if form not in known:
            known.add(form)
            found[name] = request
    return found


def measure(*, quick: bool = False) -> tuple[str, bool]:
    """Give the table, and whether all templates take all requests."""
    requests, every = wanted(quick=quick), templates()
    begun = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as threads:
        played = [*threads.map(functools.partial(_played, requests=requests), every)]
    rows = [
        [template.stem, str(len(refused)), refused[0]]
        for template, (refused, _) in zip(every, played, strict=True)
        if refused
    ]
    bad, taught = len(rows), sum(dialect != Dialect() for _, dialect in played)
    told = (
        f"{len(every) - bad} of {len(every)} templates take each of {len(requests)} requests; "
        f"{taught} of them only in another dialect, which the adapter learns from their refusals. "
        f"It took {time.monotonic() - begun:.0f} s."
    )
    if not bad:
        return told, True
    return f"{told}\n\n{table(['template', 'refused', 'the first of them'], rows)}", False


def _all_requests() -> Iterator[tuple[str, ModelRequest]]:
    for story in stories():
        for n, request in enumerate(requests_of(story), 1):
            yield f"{story.name}, request {n}", request
    yield "a summary", request_for_a_summary()


def _form(request: ModelRequest) -> str:
    messages = [(m.role, not m.content, len(m.calls)) for m in request.messages]
    return str((messages, bool(request.tools), request.output_schema is not None))


def _encoded(request: ModelRequest, dialect: Dialect) -> bytes:
    return encode_request(_fields(request, dialect), request.messages, dialect, request.nonce)


def _fields(request: ModelRequest, dialect: Dialect) -> dict[str, Any]:
    return request_fields(_MODEL, request, dialect, streamed=False)


def _played(template: Path, requests: dict[str, ModelRequest]) -> tuple[list[str], Dialect]:
    """Send requests one after another; give what was refused, and the dialect that was learned."""
    dialect, refused = Dialect(), list[str]()
    with model_server(*FAST_START, template=template) as server:
        for name, request in requests.items():
            problem, learned = _sent(server, request, dialect)
            if problem:
                refused.append(f"{name}: {problem}")
            else:
                dialect = dialect.merged(learned)
    print(
        template.stem,
        f"{len(refused)} refused",
        *refused[:3],
        sep=" | ",
        file=sys.stderr,
        flush=True,
    )
    return refused, dialect


def _sent(server: ModelServer, request: ModelRequest, dialect: Dialect) -> tuple[str, Dialect]:
    """Send a request as the adapter does; give why it is refused for good, and the dialect."""
    problem = ""
    for _ in range(MAX_ADAPTATIONS):
        status, reply = server.post("/apply-template", orjson.loads(_encoded(request, dialect)))
        if status == 200:
            return "", dialect
        problem = f"{status} {_first_words(reply)}"
        adapted = dialect.adapted(read_error(reply, status), _fields(request, dialect), request)
        if adapted is None:
            break
        dialect = adapted
    return problem, dialect


def _first_words(reply: Any) -> str:
    error = reply.get("error", reply) if isinstance(reply, dict) else reply
    message = error.get("message", error) if isinstance(error, dict) else error
    return " ".join(json.dumps(message).split())[-160:].replace("|", "/")
