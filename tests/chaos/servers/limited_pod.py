"""`diptych serve` inside the memory cgroup that CGROUP names, if it names one."""

import os
import runpy
import sys
from pathlib import Path

if folder := os.environ.pop("CGROUP", ""):
    (Path(folder) / "cgroup.procs").write_text(str(os.getpid()))
sys.argv = ["diptych", "serve", *sys.argv[1:]]
runpy.run_module("diptych", run_name="__main__", alter_sys=True)
