"""Chooses which questions of the pools are in which set: `python -m bench.models select`.

JUDGE was fixed before any of it was asked; some prompts had been tried on TUNE by then:

- plain: JUDGE is the group `judge` of the pool, which was written last, before any of it was asked
  and without a look at the model; TUNE is 40 of the others;
- results: as chosen before (decision 67): of each set's 21 the model alone, asked with the result
  first, answers 18. They stay as they are;
- the others: halves of the pool.

BLIND has plain questions only: the group `blind`, which was written after JUDGE was known to hold
more than so small a model knows, and before any of it was asked.

Within a rule the order is that of a hash of the question, so nobody chose one of them. The model is
asked nothing: a set that holds what a model got right once can only lose by any change of wording.
"""

import hashlib
from typing import Any

import yaml

from bench.models.questions import FOLDER, KINDS, Kind, Question, SetName, chosen, pool

SETS: dict[SetName, tuple[Kind, ...]] = {"tune": KINDS, "judge": KINDS, "blind": ("plain",)}
SIZES: dict[Kind, int] = {"plain": 40, "calls": 10, "delegations": 7, "histories": 10}
GROUPS: dict[str, SetName] = {"judge": "judge", "blind": "blind"}  # of plain questions; else TUNE


def alone(question: Question) -> list[dict[str, Any]]:
    """What the model alone is asked: a result, if there is one, and the question."""
    result = question.fields.get("result")
    text = question.ask if result is None else f"{result}\n\n{question.ask}"
    said = question.fields.get("said")
    earlier = [{"role": "user", "content": said}, {"role": "assistant", "content": "I see."}]
    return [*(earlier if said else ()), {"role": "user", "content": text}]


def select() -> tuple[str, bool]:
    """Write `sets.yaml`."""
    found = {name: {kind: _asks(kind, name) for kind in kinds} for name, kinds in SETS.items()}
    (FOLDER / "sets.yaml").write_text(yaml.safe_dump(found, sort_keys=False, width=100))
    return "sets.yaml is written", True


def _asks(kind: Kind, name: SetName) -> list[str]:
    match kind:
        case "results":
            return [question.ask for question in chosen(kind, name)]
        case "plain":
            of_group = [q for q in pool(kind) if GROUPS.get(q.group, "tune") == name]
            return _in_order(of_group, salt="b")[: SIZES[kind]]
        case _:
            first = [*SETS].index(name) * SIZES[kind]
            return _in_order(pool(kind))[first:][: SIZES[kind]]


def _in_order(questions: list[Question], salt: str = "") -> list[str]:
    asks = [question.ask for question in questions]
    return sorted(asks, key=lambda ask: hashlib.sha256(f"{salt}{ask}".encode()).digest())
