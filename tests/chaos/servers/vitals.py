"""Watches a pod from a process of its own: `vitals.py PORT PID`, until its input ends.

Then it prints JSON: how often `/health` was asked, the seconds of the slowest answer, how many
answers were missing, and the pod's peak of resident memory in MB.
"""

import http.client
import json
import os
import select
import sys
import time
from contextlib import closing
from pathlib import Path

PAUSE, PATIENCE = 0.1, 5.0
PAGE = os.sysconf("SC_PAGESIZE")


def main(port: int, pid: int) -> None:
    asked, missing, slowest, peak = 0, 0, 0.0, 0.0
    sys.stdout.write("watching\n")
    sys.stdout.flush()
    while not select.select([sys.stdin], [], [], PAUSE)[0]:
        begun = time.monotonic()
        asked += 1
        try:
            with closing(http.client.HTTPConnection("127.0.0.1", port, PATIENCE)) as connection:
                connection.request("GET", "/health")
                missing += connection.getresponse().status != 200
        except (OSError, http.client.HTTPException):
            missing += 1
        slowest = max(slowest, time.monotonic() - begun)
        try:
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except (OSError, IndexError):
            pages = 0
        peak = max(peak, pages * PAGE / 1e6)
    told = {"asked": asked, "missing": missing, "slowest": slowest, "peak": peak}
    sys.stdout.write(json.dumps(told))


main(*map(int, sys.argv[1:]))
