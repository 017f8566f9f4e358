"""How often a small real model is right, asked in one way or another: the table of docs/prompts.md.

Each way makes the requests of a set's questions; the model answers at temperature 0. "As it is" are
the loop's own requests. "The seed's layout" is what it was before: the rules for acting in the
system prompt, and the final prompt in a message of its own.
"""

import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from bench.models.asking import replies
from bench.models.questions import KINDS, Kind, Question, SetName, chosen, pool
from bench.models.scenario import answering, catalog_for, names_it, names_of_calls, opened
from bench.models.selection import alone
from bench.models.server import ModelServer, model_servers, templates
from bench.report import table
from diptych.core.events import Completed
from diptych.core.messages import Message
from diptych.core.prompt import action_rules
from diptych.models.encoding import encode_request

Asking = list[dict[str, Any]]
CALLING: tuple[Kind, ...] = ("calls", "delegations")
SEED_FINAL = (
    "Now provide your final response to the user, in plain text. "
    "Do not ask for a tool or an agent any more."
)
# Plain questions have an aim of their own where they are as hard as those that it was made of; in
# every set no fewer may be right than the model alone answers.
AIMS: dict[SetName, dict[Kind, int]] = {
    "judge": {"results": 17, "calls": 6},
    "everyday": {"plain": 35},
}
OWN = "its own"
OTHER_TEMPLATES = (
    "google-gemma-2-2b-it",
    "meta-llama-Llama-3.2-3B-Instruct",
    "mistralai-Mistral-Nemo-Instruct-2407",
    "Qwen-Qwen2.5-7B-Instruct",
)


@dataclass(frozen=True, slots=True)
class Way:
    """A way to ask: the messages for a question, or None where it has no meaning."""

    name: str
    messages: Callable[[Kind, Question], Asking | None]


def as_it_is(kind: Kind, question: Question) -> Asking:
    """The loop's own request: for actions where a call is wanted, else for the answer."""
    stage = opened(kind, question) if kind in CALLING else answering(kind, question)
    return written(stage.requests[-1].messages)


def model_alone(kind: Kind, question: Question) -> Asking | None:
    return None if kind in CALLING else alone(question)


def seed_layout(kind: Kind, question: Question) -> Asking:
    """The conversation of "as it is", with the prompts where the seed has them."""
    stage = opened(kind, question) if kind in CALLING else answering(kind, question)
    rules = action_rules(catalog_for(question))
    run = stage.run
    final = () if kind in CALLING else (Message("user", SEED_FINAL),)
    said = (*run.history, *run.messages, *final)
    return written([Message("system", f"{run.system}\n\n{rules}"), *said])


def written(messages: Sequence[Message]) -> Asking:
    """Give messages as the adapter writes them."""
    found: Asking = orjson.loads(encode_request({}, messages))["messages"]
    return found


WAYS = (
    Way("the model alone", model_alone),
    Way("the seed's layout", seed_layout),
    Way("as it is", as_it_is),
)


def digest() -> str:
    """Give a short hash of what is sent: it changes with every text and every place of a text."""
    asked = [as_it_is(kind, pool(kind)[0]) for kind in KINDS]
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:12]


def measure(name: SetName, *, quick: bool = False) -> tuple[str, bool]:
    """Give the table of a set, and whether the aims are met.

    Each way is asked with the model's own template, "as it is" with others too, of the set that has
    all kinds; `quick` is "as it is" with its own alone.
    """
    rows = [_row(WAYS[-1], name)]
    if not quick:
        rows = [*(_row(way, name) for way in WAYS[:-1]), *rows, _both_phases(name)]
    if not quick and name == "judge":
        by_name = {path.stem: path for path in templates()}
        rows += [_row(WAYS[-1], name, by_name[other]) for other in OTHER_TEMPLATES]
    kinds = [kind for kind in KINDS if chosen(kind, name)]
    missed = [f"{kind}: below the aim of {aim}." for kind, aim in _missed(rows, name)]
    head = [name.upper(), "chat template", *(f"{k}, of {len(chosen(k, name))}" for k in kinds)]
    head += [f"{kind}, named" for kind in CALLING if kind in kinds]
    cells = [row.cells(kinds) for row in rows]
    lines = [table(head, cells), "", f"Measured with prompts `{digest()}`.", *missed]
    return "\n".join(lines), not missed


def _missed(rows: Sequence["_Row"], name: SetName) -> list[tuple[Kind, int]]:
    """List the kinds whose aims are not met, with these: the set's, and what the model alone knows.

    The latter is none where it was not asked, and for what is no plain question.
    """
    counts = next(row.counts for row in rows if row.way == WAYS[-1].name)
    aims = dict(AIMS.get(name, {}))
    alone = next((row.counts["plain"] for row in rows if row.way == WAYS[0].name), None)
    aims["plain"] = max(aims.get("plain", 0), alone or 0)
    return [(kind, aim) for kind, aim in aims.items() if (counts[kind] or 0) < aim]


@dataclass(frozen=True, slots=True)
class _Row:
    """`named` counts the replies that name what they must call in JSON, of use or not."""

    way: str
    template: str
    counts: dict[Kind, int | None]
    named: dict[Kind, int | None]

    def cells(self, kinds: Sequence[Kind]) -> list[str]:
        counts = [self.counts[kind] for kind in kinds]
        counts += [self.named.get(kind) for kind in CALLING if kind in kinds]
        return [self.way, self.template, *("" if n is None else str(n) for n in counts)]


def _row(way: Way, name: SetName, template: Path | None = None) -> _Row:
    counts: dict[Kind, int | None] = {}
    named: dict[Kind, int | None] = {}
    with model_servers(template) as servers:
        for kind in KINDS:
            is_kept = way is WAYS[-1] and template is None  # both phases ask the same, and more
            told = _told(way, kind, name, servers, whole=is_kept or kind in CALLING)
            counts[kind] = sum(is_right(kind, q, a) for q, a in told) if told else None
            if kind in CALLING:
                named[kind] = sum(names_it(q, a) for q, a in told) if told else None
    row = _Row(way.name, template.stem if template else OWN, counts, named)
    print(name, *row.cells(KINDS), sep=" | ", file=sys.stderr, flush=True)  # the table takes long
    return row


def _told(
    way: Way, kind: Kind, name: SetName, servers: Sequence[ModelServer], *, whole: bool
) -> list[tuple[Question, str]]:
    """Ask the questions of a set; give each with the reply; nothing if it has no meaning.

    A reply is read as far as its judgment needs it, unless it is to be `whole`.
    """
    asked = [(q, way.messages(kind, q)) for q in chosen(kind, name)]
    sent = [(q, messages) for q, messages in asked if messages is not None]
    judged_by = None if whole else [q for q, _ in sent]
    answers = replies(servers, [messages for _, messages in sent], judged_by=judged_by)
    return [(q, answer) for (q, _), answer in zip(sent, answers, strict=True)]


def is_right(kind: Kind, question: Question, reply: str) -> bool:
    if kind in CALLING:
        return question.fields["name"] in names_of_calls(question, reply)
    return question.is_right(reply)


def _both_phases(name: SetName) -> _Row:
    """Let the model say everything itself, in both phases, and judge the answers."""
    with model_servers() as servers:
        counts = {
            kind: None if kind in CALLING else sum(_played(kind, chosen(kind, name), servers))
            for kind in KINDS
        }
    return _Row("as it is, the model in both phases", OWN, counts, {})


def _played(
    kind: Kind, questions: Sequence[Question], servers: Sequence[ModelServer]
) -> Iterator[bool]:
    stages = [opened(kind, question) for question in questions]
    while going := [stage for stage in stages if not stage.is_over]:
        asked = [written(stage.requests[-1].messages) for stage in going]
        for stage, said in zip(going, replies(servers, asked), strict=True):
            stage.say(said)
    for stage, question in zip(stages, questions, strict=True):
        yield isinstance(stage.run.end, Completed) and question.is_right(stage.run.draft.text)
