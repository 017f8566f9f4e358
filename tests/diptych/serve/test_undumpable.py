"""What another process of the same user sees of an undumpable one."""

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

from diptych.serve import process

NOBODY = 65534
PROGRAM = """
import subprocess, sys
source, state = sys.argv[1:]
module = {}
exec(source, module)
if state == "guarded":
    module["make_undumpable"]()
snoop = '''
import os
for file in ("environ", "mem", "fd"):
    path = f"/proc/{os.getppid()}/{file}"
    try:
        os.listdir(path) if file == "fd" else os.close(os.open(path, os.O_RDONLY))
        print("read", end=" ")
    except PermissionError:
        print("refused", end=" ")
'''
subprocess.run([sys.executable, "-I", "-S", "-c", snoop], env={}, check=True)
"""
# Root may read everything. Who else runs the tests may be unable to run a Python of root's.
PYTHON = "/usr/bin/python3" if os.geteuid() == 0 else sys.executable

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not Path(PYTHON).exists(), reason="the kernel's own means"
)


@pytest.mark.parametrize(
    ("state", "seen"), [("open", "read read read"), ("guarded", "refused refused refused")]
)
def test_a_child_can_read_its_agent_only_if_nothing_is_done(state: str, seen: str) -> None:
    constant = f"_PR_SET_DUMPABLE = {process._PR_SET_DUMPABLE}"
    source = f"import ctypes, sys\n{constant}\n{inspect.getsource(process.make_undumpable)}"
    done = subprocess.run(
        [PYTHON, "-I", "-c", PROGRAM, source, state],
        user=NOBODY if os.geteuid() == 0 else None,
        group=NOBODY if os.geteuid() == 0 else None,
        env={"SECRET": "canary"},
        cwd="/",
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert done.stdout.split() == seen.split()
