"""Records what a real model says and how its server streams it: `python -m bench.models record`.

The texts and streams are what the tests begin with that play a hostile model
(`tests/recorded/model`). Of a text at most `KEPT` characters are kept.
"""

import json
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any

from bench.models.measure import written
from bench.models.questions import Kind, Question, chosen
from bench.models.runs import EXTRA, OWN, TEMPLATES
from bench.models.scenario import answering, opened
from bench.models.server import ALONE, REPLY_SECONDS, ModelServer, model_server, templates
from bench.processes import ROOT

FOLDER = ROOT / "tests" / "recorded" / "model"
KINDS: tuple[Kind, ...] = ("plain", "results", "calls", "delegations")
OF_EACH, TOKENS, STREAM_TOKENS, KEPT = 1, 48, 16, 400
TEMPERATURE = 0.8
REASONING = ("deepseek-ai-DeepSeek-R1-Distill-Llama-8B", "openai-gpt-oss-120b")
STREAMED = {OWN: "answer", REASONING[0]: "reasoning"}
Messages = list[dict[str, Any]]


def record() -> tuple[str, bool]:
    """Write the recordings."""
    by_name = {path.stem: path for path in templates()}
    (FOLDER / "streams").mkdir(parents=True, exist_ok=True)
    lines: list[str] = []
    for name in (*TEMPLATES, *REASONING):
        with model_server(*ALONE, template=by_name.get(name)) as server:
            lines += [*_texts(server, name)]
            if name in STREAMED:
                (FOLDER / "streams" / f"{STREAMED[name]}.sse").write_bytes(_stream(server))
    (FOLDER / "replies.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return f"{len(lines)} replies are written", True


def _requests() -> Iterator[tuple[str, Messages]]:
    for kind in KINDS:
        for question in chosen(kind, "tune")[:OF_EACH]:
            stage = opened(kind, question)
            yield f"{kind}, actions", written(stage.requests[-1].messages)
            if kind in {"plain", "results"}:
                yield f"{kind}, answer", written(answering(kind, question).requests[-1].messages)
    for message in EXTRA[4:8]:
        stage = opened("plain", Question(message, "", {}))
        yield message, written(stage.requests[-1].messages)


def _texts(server: ModelServer, template: str) -> Iterator[str]:
    for seed, (asked, messages) in enumerate(_requests(), 1):
        body = {"messages": messages, "max_tokens": TOKENS, "seed": seed}
        status, found = server.post("/v1/chat/completions", {**body, "temperature": TEMPERATURE})
        if status != 200:  # a call that llama.cpp could not read
            continue
        choice = found["choices"][0]
        text, thought = (choice["message"].get(k) or "" for k in ("content", "reasoning_content"))
        told = {"template": template, "asked": asked, "finish_reason": choice["finish_reason"]}
        told |= {"text": text[:KEPT], **({"reasoning": thought[:KEPT]} if thought else {})}
        yield json.dumps(told, ensure_ascii=False)


def _stream(server: ModelServer) -> bytes:
    body = {
        "messages": [{"role": "user", "content": "Who are you?"}],
        "max_tokens": STREAM_TOKENS,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
    }
    connection = HTTPConnection("127.0.0.1", server.port, timeout=REPLY_SECONDS)
    try:
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        return connection.getresponse().read()
    finally:
        connection.close()
