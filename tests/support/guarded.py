"""The runs of an agent as its routes see them, for a caller who may do everything."""

import time

from diptych.access.limits import Limits, RunLimiter
from diptych.http.guarded_runs import GuardedRuns
from diptych.manifest.settings import ChatConfig
from diptych.runs.service import RunService


def guarded(runs: RunService) -> GuardedRuns:
    return GuardedRuns(runs, RunLimiter(Limits(), time.monotonic), ChatConfig())
