"""The program `diptych`, also as `python -m diptych`: Ctrl-C first, then the command line."""

import os
import signal
import sys
from types import FrameType

_INTERRUPTED = 128 + signal.SIGINT  # as shells report a signal
_IMPORT_MACHINERY = "<frozen importlib._bootstrap>"


def main() -> None:
    """Run the command of `sys.argv`, and exit."""
    signal.signal(signal.SIGINT, _raise_interrupt)  # the next import takes a tenth of a second
    if "OTEL_PROPAGATORS" in os.environ:
        _mend_propagators()
    from diptych.cli import main as run_command  # noqa: PLC0415

    try:
        run_command()
    except KeyboardInterrupt:  # before a command is at work, or after it
        raise SystemExit(_INTERRUPTED) from None


def _mend_propagators() -> None:
    """Leave out what OpenTelemetry's API would not be imported with; say so."""
    from diptych.manifest.telemetry import drop_unknown_propagators  # noqa: PLC0415

    if problem := drop_unknown_propagators(os.environ):
        sys.stderr.write(f"{problem}\n")


def _raise_interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, or end the process at once in the middle of an import.

    Raised there it may be lost, become another error, or leave an import lock taken for ever:
    `except` clauses, `__set_name__` and weak references' callbacks are on its way.
    """
    caller = frame
    while caller:
        if caller.f_code.co_filename == _IMPORT_MACHINERY:
            os._exit(_INTERRUPTED)
        caller = caller.f_back
    signal.default_int_handler(number, frame)


if __name__ == "__main__":
    main()
