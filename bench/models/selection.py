"""Chooses which questions of the pools are in which set: `python -m bench.models select`.

JUDGE was fixed before any of it was asked; some prompts had been tried on TUNE by then:

- plain: JUDGE is the group `judge` of the pool, which was written last, before any of it was asked
  and without a look at the model; TUNE is 40 of the others;
- results: as chosen before (decision 67): of each set's 21 the model alone, asked with the result
  first, answers 18. They stay as they are;
- the others: halves of the pool.

BLIND has plain questions only: the group `blind`, which was written after JUDGE was known to hold
more than so small a model knows, and before any of it was asked.

EVERYDAY and EVERYDAY_TUNE are as hard as the questions of which the aim was made: the model alone
answers 35 of 40. Their group was written in one go before any of it was asked, and `calibrate` asks
the model alone, `SAMPLES` times each at `TEMPERATURE`: how often it is right says how easy a
question is. Of all, sorted by that, the 80 neighbours are taken whose mean comes nearest to 35 of
40, and dealt out in turn.

FRESH and FRESH_TUNE have what was written for issue 27: results as JSON, dealt out in turn, and for
FRESH messages that tell to call.

Within a rule the order is that of a hash of the question, so nobody chose one of them. No set is
chosen by the replies that it is judged by, at temperature 0: what a model got right once can only
lose by any change of wording, so that every prompt would look like a loss.
"""

import hashlib
from fractions import Fraction
from typing import Any

import yaml

from bench.models.asking import replies
from bench.models.questions import FOLDER, KINDS, Kind, Question, SetName, chosen, pool
from bench.models.server import model_servers

EVERYDAY: tuple[SetName, ...] = ("everyday_tune", "everyday")
SETS: dict[SetName, tuple[Kind, ...]] = {
    "tune": KINDS,
    "judge": KINDS,
    "blind": ("plain",),
    **dict.fromkeys(EVERYDAY, ("plain",)),
    "fresh_tune": ("results",),
    "fresh": ("results", "calls"),
}
SIZES: dict[Kind, int] = {"plain": 40, "calls": 10, "delegations": 7, "histories": 10}
FRESH: tuple[SetName, ...] = ("fresh_tune", "fresh")
# Of plain questions; the other groups are TUNE's.
GROUPS: dict[str, SetName] = {"judge": "judge", "blind": "blind", "everyday": "everyday"}
SAMPLES, TEMPERATURE = 4, 0.8
ALONE = Fraction(35, 40)
KNOWN = FOLDER / "everyday.yaml"  # how often the model alone was right, by question


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
    fresh = _in_order([question for question in pool(kind) if question.group == "fresh"])
    match kind:
        case "calls" if name in FRESH:
            return fresh
        case "results" if name in FRESH:
            return fresh[FRESH.index(name) :: len(FRESH)]
        case "results":
            return [question.ask for question in chosen(kind, name)]
        case "plain" if name in EVERYDAY:
            asks = _as_easy_as(ALONE, len(EVERYDAY) * SIZES[kind])
            return asks[EVERYDAY.index(name) :: len(EVERYDAY)]
        case "plain":
            of_group = [q for q in pool(kind) if GROUPS.get(q.group, "tune") == name]
            return _in_order(of_group, salt="b")[: SIZES[kind]]
        case _:
            first = [*SETS].index(name) * SIZES[kind]
            of_pool = [question for question in pool(kind) if question.group != "fresh"]
            return _in_order(of_pool)[first:][: SIZES[kind]]


def calibrate() -> tuple[str, bool]:
    """Ask the model alone what EVERYDAY is chosen from; write how often it is right."""
    asked = [question for question in pool("plain") if question.group == "everyday"]
    known = dict.fromkeys((question.ask for question in asked), 0)
    with model_servers() as servers:
        for seed in range(1, SAMPLES + 1):
            said = replies(servers, [*map(alone, asked)], temperature=TEMPERATURE, seed=seed)
            for question, reply in zip(asked, said, strict=True):
                known[question.ask] += question.is_right(reply)
    KNOWN.write_text(yaml.safe_dump(known, sort_keys=False, width=100))
    return f"right: {sum(known.values())} of {SAMPLES * len(known)} replies", True


def _as_easy_as(share: Fraction, count: int) -> list[str]:
    """Give so many neighbours in the order of easiness, whose mean comes nearest to a share."""
    known: dict[str, int] = yaml.safe_load(KNOWN.read_text())
    asks = sorted(_in_order([q for q in pool("plain") if q.ask in known]), key=lambda a: -known[a])
    wanted = share * SAMPLES * count
    windows = [asks[n : n + count] for n in range(len(asks) - count + 1)]
    return min(windows, key=lambda window: abs(sum(known[ask] for ask in window) - wanted))


def _in_order(questions: list[Question], salt: str = "") -> list[str]:
    asks = [question.ask for question in questions]
    return sorted(asks, key=lambda ask: hashlib.sha256(f"{salt}{ask}".encode()).digest())
