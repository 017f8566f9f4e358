"""Follows runs from inside the cluster, as clients do that lose a connection and come back."""

from dataclasses import dataclass

from harness.beside import Beside
from harness.kubectl import Kubectl

_FOLLOW = """
import json, sys, time, urllib.error, urllib.request
url, run = sys.argv[1:]
ids, types, text, breaks, until = [], [], "", 0, time.monotonic() + 120
print("started", flush=True)
while time.monotonic() < until and not (types and types[-1] in ("completed", "failed", "aborted")):
    request = urllib.request.Request(f"{url}/v1/runs/{run}/events",
        headers={"last-event-id": str(ids[-1])} if ids else {})
    try:
        with urllib.request.urlopen(request, timeout=30) as reply:
            kind, number = "", None
            for line in reply:
                name, _, value = line.decode().rstrip("\\n").partition(": ")
                if name == "event": kind = value
                if name == "id": number = int(value)
                if name == "data" and number is not None:
                    ids.append(number)
                    types.append(kind)
                    text = "" if kind == "answer_reset" else text
                    text += json.loads(value)["content"] if kind == "text" else ""
                if not line.strip(): kind, number = "", None
    except OSError as error:
        pass
    breaks += 1
    time.sleep(0.3)
print(json.dumps({"ids": ids, "types": types, "text": text, "connections": breaks}))
"""

_STREAMS = """
import json, sys, threading, urllib.request
url, count = sys.argv[1], int(sys.argv[2])
body = json.dumps({"stream": True, "messages": [{"role": "user", "content": "Go."}]}).encode()
told, begun = [], threading.Semaphore(0)
def stream():
    text, ended, wrong = "", False, ""
    try:
        request = urllib.request.Request(url + "/v1/chat/completions", data=body,
            headers={"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as reply:
            for line in reply:
                if not line.startswith(b"data: "): continue
                if line.startswith(b"data: [DONE]"): ended = True; continue
                frame = json.loads(line[6:])
                if "error" in frame: wrong = str(frame["error"]); continue
                if not text: begun.release()
                text += frame["choices"][0]["delta"].get("content") or ""
    except OSError as error:
        wrong = repr(error)
    begun.release()
    told.append({"text": text, "ended": ended, "wrong": wrong})
threads = [threading.Thread(target=stream) for _ in range(count)]
for thread in threads: thread.start()
for _ in threads: begun.acquire()
print("started", flush=True)
for thread in threads: thread.join()
print(json.dumps(told))
"""


@dataclass(frozen=True)
class Followed:
    """What a follower got, over all its connections."""

    ids: list[int]
    types: list[str]
    text: str
    connections: int


def following(kubectl: Kubectl, agent: str, run_id: str) -> Beside:
    """Follow a run to its end, coming back with the last id after each break."""
    return Beside(kubectl, "probe", _FOLLOW, f"http://{agent}:8000", run_id)


def streaming(kubectl: Kubectl, agent: str, count: int) -> Beside:
    """Have so many chat streams at once, none of which comes back after a break."""
    return Beside(kubectl, "probe", _STREAMS, f"http://{agent}:8000", str(count))
