"""Backup and restore as docs/backup.md has it: Agents and their Redis are lost, and come back.

A namespace that is made again is to Agents what another cluster is: everything has another uid.
"""

import json
import re
import subprocess
from typing import Any

import pytest
from harness import objects
from harness.clusters import ROOT, Cluster
from harness.kubectl import eventually
from harness.objects import agent
from harness.sharing import Run
from harness.space import Space
from harness.telling import say

HELLO = ["{}", "Hello!"]
REDIS = {"redis": {"serviceRef": {"name": "redis"}}}

# What `redis-cli --rdb` or a snapshot does: every key, with the time that it has left.
DUMP = """
import base64, json, redis
store = redis.Redis("redis")
print(json.dumps([[base64.b64encode(part).decode() for part in (key, store.dump(key))]
    + [max(store.pttl(key), 0)] for key in store.scan_iter()]))
"""
RESTORE = """
import base64, json, sys, redis
store = redis.Redis("redis")
for key, value, left in json.load(sys.stdin):
    store.restore(base64.b64decode(key), left, base64.b64decode(value))
"""


@pytest.mark.long
def test_agents_and_their_conversations_are_restored(space: Space, cluster: Cluster, run: Run):
    run.once("redis", lambda: cluster.load("redis:7"))
    kubectl = space.kubectl
    space.serve_redis()
    space.serve(agent("talk", HELLO, sessions=REDIS), agent("plain", HELLO))
    space.probe.ask("talk", "Remember me.", session="one")

    agents = kubectl("get", "agents.diptych.dev", "-o", "json")
    rows = kubectl("exec", "probe", "--", "python", "-c", DUMP)
    say(
        f"the backup has {len(json.loads(rows))} keys and {len(json.loads(agents)['items'])} Agents"
    )

    kubectl("delete", "namespace", space.name, timeout=200)
    kubectl.apply(objects.namespace(space.name))
    again = Space(kubectl, space.image)
    again.serve_redis()  # which is empty, and needs the probe
    kubectl("exec", "-i", "probe", "--", "python", "-c", RESTORE, stdin=rows)
    kubectl("apply", "-f", "-", stdin=json.dumps(restorable(json.loads(agents))))
    kubectl.wait_until_ready("talk", "plain")

    def said() -> list[str]:
        events = again.probe.events("talk", "one")
        return [event["content"] for event in events if event["event_type"] == "user_message"]

    eventually(lambda: said() == ["Remember me."], seconds=30, what="the conversation is back")
    assert again.probe.ask("talk", "Again.", session="one").content == "Hello!"
    assert said() == ["Remember me.", "Again."]


def restorable(agents: dict[str, Any]) -> dict[str, Any]:
    """Do what the page's jq does, by it where it is installed."""
    page = (ROOT / "docs" / "backup.md").read_text()
    (program,) = re.findall(r"jq '([^']*)' agents.json", page)
    try:
        made = subprocess.run(
            ["jq", program], input=json.dumps(agents), capture_output=True, text=True, check=True
        )
    except FileNotFoundError:
        say("jq is not installed: THE PAGE'S PROGRAM WAS NOT TRIED")
    else:
        return dict(json.loads(made.stdout))
    for one in agents["items"]:
        if "redis" in one["spec"].get("sessions", {}):
            one["spec"]["sessions"].setdefault("adopt", one["status"]["sessions"])
        one["metadata"] = {name: one["metadata"][name] for name in ("name", "namespace")}
        del one["status"]
    return agents
