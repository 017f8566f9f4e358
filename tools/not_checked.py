# ruff: noqa: INP001 - a script, no package
"""Prints what a run of the tests did not check: `python tools/not_checked.py REPORT.xml`.

The report is pytest's, in JUnit's format. It prints nothing if no test was skipped.
"""

import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree as ET


def reasons(report: Path) -> Counter[str]:
    """Count the skipped tests of a report by the reason."""
    skipped = ET.parse(report).iter("skipped")  # noqa: S314 - pytest wrote it
    return Counter(s.get("message", "") for s in skipped if s.get("type") == "pytest.skip")


if __name__ == "__main__":
    for reason, count in sorted(reasons(Path(sys.argv[1])).items()):
        tests = "1 test" if count == 1 else f"{count} tests"
        sys.stdout.write(f"NOT CHECKED, {tests}: {reason}\n")
