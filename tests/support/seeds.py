"""Which seeds the simulations try, and what they need around them.

`DIPTYCH_SEEDS=10000` tries that many seeds, `DIPTYCH_SEEDS=2000-2500` those from 2000 up to 2499:
a long night is best cut in pieces. `DIPTYCH_SEED=123` tries only that one. `DIPTYCH_FORMAT=native`
or `json` makes all seeds so.
"""

import gc
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

PER_BLOCK = 50
_FORMAT = os.environ.get("DIPTYCH_FORMAT")
NATIVE = None if _FORMAT is None else _FORMAT == "native"


def blocks(default: int, part: int = 1) -> list[range]:
    """Give the seeds to try, in blocks: `default` ones if nobody says how many.

    Of more that somebody asks for, only one in `part` is tried.
    """
    if only := os.environ.get("DIPTYCH_SEED"):
        return [range(int(only), int(only) + 1)]
    first, _, last = os.environ.get("DIPTYCH_SEEDS", str(default)).rpartition("-")
    begin, end = int(first or 0) // part, int(last) // part
    return [range(n, min(n + PER_BLOCK, end)) for n in range(begin, end, PER_BLOCK)]


@contextmanager
def quiet() -> Iterator[None]:
    """Log nothing: what goes wrong on purpose would be logged thousands of times.

    And have the garbage collector look seldom, and only at what seeds leave behind: nearly all of
    it is cycles of a world that has ended. What was frozen stays so, with all that was collected.
    """
    before = gc.get_threshold()
    logging.disable(logging.ERROR)
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    yield
    gc.set_threshold(*before)
    logging.disable(logging.NOTSET)
