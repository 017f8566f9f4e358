# ruff: noqa: INP001 - a script, no package
"""Writes `docs/reference/cli.md` with Typer's own generator, so it says what `--help` says."""

import subprocess
import sys
from pathlib import Path

FILE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"
NOTE = """\
<!-- tools/reference/cli.py writes this page. -->

The same program is `kubectl diptych`. [In a cluster](../cluster.md) explains targets, tokens and
exit codes.
"""


def text() -> str:
    """Return the page."""
    command = [sys.executable, "-m", "typer", "diptych.cli", "utils", "docs", "--name", "diptych"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
    title, _, rest = run.stdout.partition("\n")
    del title
    shown, _, _ = rest.partition("## `diptych demo-tools`")  # hidden commands are the last ones
    hidden = ("* `demo-tools`", "* `model-proxy`", "* `pool`")
    lines = [line for line in shown.splitlines() if not line.startswith(hidden)]
    return f"# Command line\n\n{NOTE}\n" + "\n".join(lines).strip() + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
