"""Restores Agents and their conversations in a second cluster, as docs/backup.md has it.

    make restore-elsewhere

It makes a cluster, backs up what is in it by the page's own commands, deletes it, makes another
one, and restores: so it is no case of the suite. Redis is started with the file that `redis-cli`
wrote. At the end a session of the first cluster goes on in the second.
"""

import base64
import contextlib
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness import clusters, objects, release, telling
from harness.clusters import ROOT
from harness.commands import output
from harness.kubectl import eventually
from harness.sharing import Run
from harness.space import Space
from harness.telling import say

HELLO = ["{}", "Hello!"]
TEAM = "team"  # as the page calls it
PAGE = ROOT / "docs" / "backup.md"
REDIS = {"redis": {"urlFrom": {"secretKeyRef": {"name": "store", "key": "url"}}}}
STARTS = (
    "until [ -f /data/whole ]; do sleep 0.2; done; "
    "exec redis-server --dir /data --protected-mode no"
)


def commands(chapter: str) -> list[str]:
    """Give the commands of a chapter of the page, as a shell takes them."""
    (text,) = re.findall(
        rf"^## {chapter}.*?\n(.*?)^## ", PAGE.read_text(), re.DOTALL | re.MULTILINE
    )
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return blocks or [line.strip() for line in text.splitlines() if line.startswith("    ")]


def shell(space: Space, command: str, folder: Path) -> None:
    output("sh", "-ec", f"cd {folder}; {command}", env=space.kubectl.env)


@contextlib.contextmanager
def installed() -> Iterator[Space]:
    """Make a cluster with the chart and an empty namespace; delete it at the end."""
    run = Run()
    try:
        cluster = clusters.cluster(run)
        cluster.load("redis:7")
        found = release.installed(run, cluster)
        kubectl = found.kubectl.within(TEAM)
        kubectl.apply(objects.namespace(TEAM))
        yield Space(kubectl, found.image)
    finally:
        clusters.end(run)


def start_redis(space: Space, dump: Path | None = None) -> None:
    """Start a Redis that has a folder for its data: with a dump in it, if there is one."""
    deployment: dict[str, Any]
    deployment, service = objects.redis("redis")
    pod = deployment["spec"]["template"]["spec"]
    pod["volumes"] = [{"name": "data", "emptyDir": {}}]
    pod["containers"][0]["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
    if dump:
        pod["containers"][0]["command"] = ["sh", "-c", STARTS]
    space.kubectl.apply(deployment, service)
    if dump:
        name = eventually(lambda: _running(space), seconds=90, what="the pod of Redis runs")
        put = "base64 -d > /data/dump.rdb && touch /data/whole"
        given = base64.b64encode(dump.read_bytes()).decode()
        space.kubectl("exec", "-i", name, "--", "sh", "-c", put, stdin=given)
    space.kubectl("rollout", "status", "deployment/redis", "--timeout=90s")


def _running(space: Space) -> str:
    pods = space.kubectl.list("pods", "app=redis")
    return next((p["metadata"]["name"] for p in pods if p["status"]["phase"] == "Running"), "")


def back_up(folder: Path) -> None:
    """Fill a first cluster, and back it up by the page's commands."""
    with installed() as space:
        kubectl = space.kubectl
        start_redis(space)
        kubectl.apply(objects.secret("store", url="redis://redis:6379"))
        space.serve(objects.agent("talk", HELLO, sessions=REDIS), objects.agent("plain", HELLO))
        space.probe.ask("talk", "Remember me.", session="one")
        for command in commands("Backup"):
            if command.startswith("kubectl"):
                shell(space, command, folder)
            else:  # redis-cli, which Redis' own pod has; it takes the data out as text
                ask = f"cd /data; REDIS_URL=redis://127.0.0.1; {command.partition('#')[0]}"
                inside = ("exec", _running(space), "--", "sh", "-ec")
                kubectl(*inside, f"({ask}) >&2")
                told = kubectl(*inside, "base64 /data/dump.rdb")
                (folder / "dump.rdb").write_bytes(base64.b64decode(told))
    sizes = {file.name: file.stat().st_size for file in sorted(folder.iterdir())}
    say(f"the backup, in bytes: {sizes}")


def restore(folder: Path) -> None:
    """Restore in a second cluster, in the page's order; a session goes on."""
    with installed() as space:
        kubectl, began = space.kubectl, time.monotonic()
        start_redis(space, folder / "dump.rdb")
        for command in commands("Restore"):
            shell(space, command, folder)
        kubectl.wait_until_ready("talk", "plain")
        say(f"all is ready {time.monotonic() - began:.0f} s after the restore began")

        def said() -> list[str]:
            events = space.probe.events("talk", "one")
            return [e["content"] for e in events if e["event_type"] == "user_message"]

        eventually(lambda: said() == ["Remember me."], seconds=30, what="the conversation is there")
        answer = space.probe.ask("talk", "Again.", session="one").content
        assert answer == "Hello!", answer
        assert said() == ["Remember me.", "Again."], said()
    say("the session of the first cluster goes on in the second")


def main() -> int:
    telling.begin()
    if os.environ.pop("KUBECONFIG", None):
        say("KUBECONFIG is not used: this makes two clusters of its own")
    with tempfile.TemporaryDirectory() as folder:
        back_up(Path(folder))
        restore(Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
