"""Some thirty faults, many side by side: each is named within 20 s, and gone 20 s after its end.

Where pods must start, fail or end first, which is the kubelet's affair, the 20 s begin with the
last of that: a pod's first start, failure, readiness or end. Without any, with the fault.

With FAULT_TABLE=FILE it writes what was seen, as docs/reference/faults.md shows it.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest
from harness import objects
from harness.clusters import Cluster
from harness.faults import CLUSTER, HELLO, MANIFEST, NAMESPACE, Fault, dependencies
from harness.kubectl import eventually
from harness.objects import agent
from harness.pod_changes import PodChanges
from harness.release import Release
from harness.sharing import Run
from harness.space import Space, space_of
from harness.telling import say

pytestmark = [pytest.mark.nightly, pytest.mark.alone(leaves_release=True), pytest.mark.long]

SECONDS = 20
"""For pods and operator to name a fault, and to take its name back."""
LOOK_SECONDS = 3
"""For a look of this test; how long it took in truth is taken off where the 20 s are enforced."""
KUBELET_SECONDS = 100
"""For pods to come up, or to fail, where many do at once on two cores."""
DIPTYCH = Path(sys.executable).parent / "diptych"


@dataclass
class Seen:
    """What tells of one fault."""

    fault: Fault
    seconds: float = 0.0
    after_pods: float = 0.0
    at_least: float = 0.0
    row: str = ""
    advice: str = ""
    condition: str = ""
    event: str = ""
    status: str = ""
    metric: str = ""
    gone_after: float = 0.0
    gone_after_pods: float = 0.0
    gone_at_least: float = 0.0


def name_of(fault: Fault) -> str:
    return fault.labels.get("agent", fault.name)


def test_faults_of_manifests_and_pods_are_named_and_go(space: Space, diptych: Release):
    for half in (MANIFEST[:8], MANIFEST[8:]):
        _see_all(space, diptych, half)


def test_faults_of_what_agents_use_are_named_and_go(
    space: Space, diptych: Release, cluster: Cluster, run: Run
):
    run.once("redis", lambda: cluster.load("redis:7"))
    space.serve_redis()
    space.kubectl.apply(*objects.redis("guarded", "right"))
    other = space.kubectl.within(f"{space.name}-2")
    other.apply(objects.namespace(other.namespace))
    try:
        other.apply(agent("aide", HELLO))
        found = dependencies(space)
        for half in (found[:6], found[6:]):
            _see_all(space, diptych, half)
    finally:
        space.kubectl("delete", "namespace", other.namespace, "--wait=false")


def test_faults_of_namespaces_are_named_and_go(diptych: Release):
    """Each in a namespace of its own; side by side, but for those whose metric is the same."""
    reasons = {fault.told[2] for fault in NAMESPACE}

    def see(reason: str) -> None:
        for fault in (fault for fault in NAMESPACE if fault.told[2] == reason):
            with space_of(diptych, f"fault-{fault.name}") as space:
                _see_one(space, diptych, fault)

    with ThreadPoolExecutor(len(reasons)) as pool:
        list(pool.map(see, reasons))


@pytest.mark.alone  # which takes a right from the release
@pytest.mark.parametrize("fault", CLUSTER, ids=lambda fault: fault.name)
def test_faults_of_the_cluster_are_named_and_go(space: Space, diptych: Release, fault: Fault):
    _see_one(space, diptych, fault)


def _see_one(space: Space, diptych: Release, fault: Fault) -> None:
    try:
        _see_all(space, diptych, [fault])
    finally:
        _quietly(lambda: fault.mend(space))


def _see_all(space: Space, diptych: Release, faults: Sequence[Fault]) -> None:
    for fault in faults:
        if fault.before:
            space.kubectl.apply(*fault.before)
    space.kubectl.wait_until_ready(*(name_of(f) for f in faults if f.is_ready), seconds=240)
    seen = [Seen(fault) for fault in faults]
    with _Watch(space) as watch:
        for one in seen:
            one.fault.make(space)
            one.seconds = time.monotonic()
        for one in seen:
            told = partial(_is_told, one.fault)
            content, *times = watch.first(one.fault, told, since=one.seconds)
            one.seconds, one.after_pods, one.at_least = times
            _note(one, content)
    _look_around(space, diptych, seen)
    with _Watch(space) as watch:
        for one in seen:
            one.fault.mend(space)
            one.gone_after = time.monotonic()
        for one in seen:
            gone = partial(_is_gone, one.fault)
            _, *times = watch.first(one.fault, gone, since=one.gone_after)
            one.gone_after, one.gone_after_pods, one.gone_at_least = times
            say(
                f"{one.fault.what}: named in {_told(one.seconds, one.after_pods)} s, gone in "
                f"{_told(one.gone_after, one.gone_after_pods)} s"
            )
    _write(seen)
    late = [one.fault.what for one in seen if max(one.at_least, one.gone_at_least) > SECONDS]
    assert not late, f"not named, or not gone, within {SECONDS} s of the last pod's change: {late}"


def _told(seconds: float, after_pods: float) -> str:
    """Give seconds since the fault and, if pods had to change first, since the last such change."""
    is_same = seconds - after_pods < LOOK_SECONDS
    return f"{seconds:.0f}" if is_same else f"{seconds:.0f} ({after_pods:.0f})"


class _Watch:
    """Looks at all Agents of a namespace twice a second, beside those who make the faults."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self._seen: list[tuple[float, dict[str, Any]]] = []
        self._pods = PodChanges()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def first(
        self, fault: Fault, claim: Callable[[dict[str, Any]], bool], *, since: float
    ) -> tuple[dict[str, Any], float, float, float]:
        """Give the Agent when it was first seen to be so, and after how many seconds.

        These are counted from `since`, and from the last change of a pod before it; the last ones
        until the look before, when it was not so yet.
        """
        name, until = name_of(fault), since + SECONDS + KUBELET_SECONDS
        while True:
            before = since
            for at, agents in tuple(self._seen):
                if at >= since and name in agents and claim(agents[name]):
                    changes = self._pods.changes(name, *fault.uses)
                    last = max((when for when in changes if when <= at), default=since)
                    begin = max(since, last)
                    return agents[name], at - since, at - begin, before - begin
                before = max(before, at)
            if time.monotonic() > until:
                raise AssertionError(f"not told: {name}\n{self._space.kubectl.story(name)}")
            time.sleep(0.3)

    def _look(self) -> None:
        while not self._is_over.wait(0.5):
            with contextlib.suppress(AssertionError):
                begun = time.monotonic()
                found = self._space.kubectl.list("agents.diptych.dev")
                at = time.monotonic()  # what Agents say of pods by then, the next list shows
                self._pods.note(self._space.kubectl.list("pods"), begun)
                self._seen.append((at, {a["metadata"]["name"]: a for a in found}))


def _is_told(fault: Fault, content: dict[str, Any]) -> bool:
    kind, status, reason = fault.told
    conditions = content.get("status", {}).get("conditions", ())
    return any((c["type"], c["status"], c["reason"]) == (kind, status, reason) for c in conditions)


def _is_gone(fault: Fault, content: dict[str, Any]) -> bool:
    return not _is_told(fault, content)


def _note(one: Seen, content: dict[str, Any]) -> None:
    status = content["status"]
    conditions = {c["type"]: c for c in status["conditions"]}
    kind, _, reason = one.fault.told
    one.row = f"{conditions['Ready']['status']} {conditions['Ready']['reason']} {status['pods']}"
    one.condition = f"{kind}={conditions[kind]['status']} {reason}"
    one.advice = status["advice"]


def _look_around(space: Space, diptych: Release, seen: Sequence[Seen]) -> None:
    """Note what Events, `describe`, `diptych status` and the metrics say of each fault."""
    for one in seen:
        name, reason = name_of(one.fault), one.fault.told[2]
        if one.fault.has_warning:
            one.event = eventually(
                lambda name=name, reason=reason: _warning(space, name, reason),
                seconds=SECONDS,
                what=f"a Warning {reason} of {name}",
            )
        described = space.kubectl("describe", "agents.diptych.dev", name)
        assert described.index("  Advice:") < described.index("  Conditions:")
    told = _diptych_status(space)
    for one in seen:
        named = re.compile(rf"{space.name}/{name_of(one.fault)}(  |[,)])")  # or one of a group
        one.status = next((line for line in told if named.search(line)), "")
        kind, _, reason = one.fault.told
        kind = "Stalled" if kind == "Progressing" else kind  # which is False at rest, too
        one.metric = f'{{condition="{kind}",reason="{reason}"}}'
        if one.fault.has_warning:
            assert one.status, f"diptych status does not name {one.fault.what}:\n{told}"
            # Where containers fail in turn in several ways, as one without memory, it comes back.
            line = f"diptych_operator_bad_conditions{one.metric}"
            eventually(lambda line=line: line in _metrics(diptych), seconds=SECONDS, what=line)


def _warning(space: Space, name: str, reason: str) -> str:
    fields = f"--field-selector=type=Warning,reason={reason}"
    events = json.loads(space.kubectl("get", "events", fields, "-o", "json"))["items"]
    mine = [e for e in events if e["involvedObject"]["name"] == name]
    return f"Warning {reason}" if mine else ""


def _diptych_status(space: Space) -> list[str]:
    command = [str(DIPTYCH), "status", "--namespace", space.name]
    if not DIPTYCH.exists():
        command[:1] = [sys.executable, "-m", "diptych"]
    env = {**os.environ, **space.kubectl.env, "COLUMNS": "2000"}
    found = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    return found.stdout.splitlines()


def _metrics(diptych: Release) -> str:
    pod = diptych.leader() or ""
    ask = "import urllib.request as u; print(u.urlopen('http://localhost:8081/metrics').read().decode())"
    return diptych.kubectl("exec", pod, "--", "python", "-c", ask)


def _write(seen: Sequence[Seen]) -> None:
    if not (file := os.environ.get("FAULT_TABLE")):
        return
    with Path(file).open("a", encoding="utf-8") as table:
        for one in seen:
            line = {
                "what": one.fault.what,
                "seconds": _told(one.seconds, one.after_pods),
                "gone": _told(one.gone_after, one.gone_after_pods),
                "get": one.row,
                "condition": one.condition,
                "describe": one.advice,
                "event": one.event or "none",
                "status": one.status or "ready, and not named",
                "metric": one.metric if one.event else "none",
            }
            table.write(json.dumps(line) + "\n")


def _quietly(mend: Callable[[], Any]) -> None:
    with contextlib.suppress(AssertionError):  # it was mended
        mend()
