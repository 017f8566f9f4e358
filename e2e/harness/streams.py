"""Follows runs from inside the cluster, as clients do that lose a connection and come back."""

from dataclasses import dataclass

from harness.beside import Beside
from harness.space import Space

_FOLLOW = """
import json, sys, time, urllib.error, urllib.request
url, run, token = sys.argv[1:]
ids, types, text, breaks, until = [], [], "", 0, time.monotonic() + 120
print("started", flush=True)
while time.monotonic() < until and not (types and types[-1] in ("completed", "failed", "aborted")):
    request = urllib.request.Request(f"{url}/v1/runs/{run}/events",
        headers={"authorization": "Bearer " + token,
            **({"last-event-id": str(ids[-1])} if ids else {})})
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
url, count, token = sys.argv[1], int(sys.argv[2]), sys.argv[3]
body = json.dumps({"stream": True, "messages": [{"role": "user", "content": "Go."}]}).encode()
told, begun = [], threading.Semaphore(0)
def stream():
    text, ended, wrong = "", False, ""
    try:
        request = urllib.request.Request(url + "/v1/chat/completions", data=body,
            headers={"content-type": "application/json", "authorization": "Bearer " + token})
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


def following(space: Space, agent: str, run_id: str) -> Beside:
    """Follow a run to its end, coming back with the last id after each break."""
    url, token = f"http://{agent}:8000", space.probe.token(agent)
    return Beside(space.kubectl, "probe", _FOLLOW, url, run_id, token)


def streaming(space: Space, agent: str, count: int) -> Beside:
    """Have so many chat streams at once, none of which comes back after a break."""
    url, token = f"http://{agent}:8000", space.probe.token(agent)
    return Beside(space.kubectl, "probe", _STREAMS, url, str(count), token)
