# ruff: noqa: INP001 - a script, no package
"""Writes docs/reference/faults.md from what `e2e/test_fault_table.py` saw.

    FAULT_TABLE=/tmp/faults make e2e ARGS="-k fault_table"
    python tools/fault_table.py /tmp/faults

The faults stand in `e2e/harness/faults.py`.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "faults.md"
HEAD = """\
# Faults of an Agent, and how they show

<!-- tools/fault_table.py writes this page from what e2e/test_fault_table.py saw. -->

Each of these {count} faults was made on a real cluster ({nodes}). The columns: `kubectl get agents`
(READY, REASON, REPLICAS), the condition, `status.advice` as `kubectl describe` shows it, the Event,
and the labels of the metric `diptych_operator_bad_conditions`. The last column has the seconds
until the status named the fault, and until it was clear again after the repair; in parentheses,
counted from the last change of a pod. The test requires at most 20 s.

| fault | `kubectl get` | condition | advice | Event | metric | seconds |
|---|---|---|---|---|---|---|
"""
_MOST = 420  # characters of an advice


def main(file: str) -> None:
    """Write the page of a file with a line of JSON for each fault."""
    seen = [json.loads(line) for line in Path(file).read_text().splitlines()]
    rows = "".join(map(row, seen))
    head = HEAD.format(nodes="kind, one node, two cores", count=len(seen))
    PAGE.write_text(head + rows)


def row(one: dict[str, Any]) -> str:
    """Give the table's line of one fault."""
    cells = (
        one["what"],
        one["get"],
        f"`{one['condition']}`",
        general(one["describe"]),
        one["event"],
        one["metric"] if one["metric"] == "none" else f"`{one['metric']}`",
        f"{one['seconds']}, {one['gone']}",
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def general(advice: str) -> str:
    """Take out of a text what each run has of its own: namespaces, names of pods, times."""
    advice = re.sub(r"e2e-\d+-\d+-[a-z0-9-]+", "NAMESPACE", advice)
    advice = re.sub(r"\b([a-z-]+)-[0-9a-f]{6,10}-[a-z0-9]{5}\b", r"\1-…", advice)
    advice = re.sub(r"20\d\d-\d\d-\d\dT[0-9:.]+Z?(\+00:00)?", "TIME", advice)
    if len(advice) <= _MOST:
        return advice
    return f"{advice[: _MOST // 2].rstrip()} … {advice[-_MOST // 2 :].lstrip()}"


if __name__ == "__main__":
    main(sys.argv[1])
