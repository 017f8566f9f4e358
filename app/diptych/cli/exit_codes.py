"""The exit codes of `diptych`."""

from collections.abc import Mapping

COMPLETED = 0
FAILED = 1
USAGE = 2
MAX_STEPS = 3
INPUT_REQUIRED = 4
ABORTED = 130
READER_GONE = 141
"""As shells report SIGPIPE: whoever was to read the output has gone."""

EXIT_CODE_BY_STATUS: Mapping[str, int] = {
    "completed": COMPLETED,
    "failed": FAILED,
    "max_steps": MAX_STEPS,
    "aborted": ABORTED,
}
"""The exit code of a run, by the name of its terminal event (loop.md §2)."""
