"""`python -m bench.models [PART …]`: what a small real model makes of the prompts, and every
published chat template of the requests. Without a model server it says so, and fails unless
IF_POSSIBLE=1."""

import argparse
import os
import signal
import sys
from collections.abc import Callable

from bench.models import measure, prefixes, recording, runs, selection, templates
from bench.models.server import NotToBeHad

QUICK_RUNS, RUNS = 4, 40  # for each of five templates
PARTS = ("prompts", "blind", "everyday", "fresh", "prefixes", "templates", "runs")
MORE_PARTS = ("schema", "tune", "tune_everyday", "tune_fresh", "calibrate", "select", "record")


def main() -> int:
    asked = _asked()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers end, too
    parts: dict[str, Callable[[], tuple[str, bool]]] = {
        "prompts": lambda: measure.measure("judge", quick=asked.quick),
        "blind": lambda: measure.measure("blind", quick=asked.quick),
        "everyday": lambda: measure.measure("everyday", quick=asked.quick),
        "fresh": lambda: measure.measure("fresh", quick=asked.quick),
        "prefixes": prefixes.measure,
        "templates": lambda: templates.measure(quick=asked.quick),
        "runs": lambda: runs.measure(QUICK_RUNS if asked.quick else RUNS),
        "schema": lambda: runs.measure(RUNS, only_schema=True),
        "tune": lambda: measure.measure("tune", quick=True),
        "tune_everyday": lambda: measure.measure("everyday_tune", quick=True),
        "tune_fresh": lambda: measure.measure("fresh_tune", quick=True),
        "calibrate": selection.calibrate,
        "select": selection.select,
        "record": recording.record,
    }
    is_well = True
    try:
        for name in asked.parts or PARTS:
            print(f"## {name}\n", flush=True)
            told, is_part_well = parts[name]()
            print(f"{told}\n", flush=True)
            is_well = is_well and is_part_well
    except NotToBeHad as error:
        sys.stderr.write(
            f"\n*** NO REAL MODEL WAS ASKED: {error}\n"
            "*** Nothing of what it shows is shown: not the prompts, nor the templates.\n\n"
        )
        return 0 if os.environ.get("IF_POSSIBLE") else 1
    return 0 if is_well else 1


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.models")
    parser.add_argument(
        "parts",
        nargs="*",
        metavar="PART",
        help=f"{', '.join(PARTS)} (all if none); {', '.join(MORE_PARTS)}",
    )
    parser.add_argument("--quick", action="store_true", default=bool(os.environ.get("QUICK")))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
