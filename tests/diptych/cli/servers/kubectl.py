"""Stands in for kubectl in tests: notes how it was called, and answers from a file.

`calls.jsonl` beside it gets a line for each call: its pid and its words. `answers.json` holds
rules; the first whose parts all stand in the call answers: with text and an exit code, or, for a
port-forward, by really leading a port of this machine to another one.
"""

import json
import os
import socket
import sys
import threading
from pathlib import Path

HERE = Path(sys.argv[0]).parent


def main() -> int:
    words = [Path(sys.argv[0]).name, *sys.argv[1:]]
    with (HERE / "calls.jsonl").open("a") as calls:
        calls.write(json.dumps({"pid": os.getpid(), "words": words}) + "\n")
    line = f" {' '.join(words)} "
    rules = json.loads((HERE / "answers.json").read_text())
    for rule in rules:
        if all(f" {part} " in line for part in rule["words"]):
            sys.stdout.write(rule["out"])
            sys.stderr.write(rule["err"])
            if rule["forwards_to"]:
                forward(words, rule["forwards_to"], is_dead=rule["is_dead"])
            return int(rule["code"])
    sys.stderr.write(f"error: the double has no answer to {words}\n")
    return 97


def forward(words: list[str], target: int, *, is_dead: bool) -> None:
    """Lead a port to `target` until killed; to a pod that is dead, until the first connection."""
    wanted = next(word for word in words if word.endswith(":8000")).partition(":")[0]
    with socket.create_server(("127.0.0.1", int(wanted or 0))) as server:
        port = server.getsockname()[1]
        sys.stdout.write(f"Forwarding from 127.0.0.1:{port} -> 8000\n")
        sys.stdout.flush()
        while True:
            near, _ = server.accept()
            if is_dead:
                near.close()
                break
            far = socket.create_connection(("127.0.0.1", target))
            for ends in ((near, far), (far, near)):
                threading.Thread(target=pump, args=ends, daemon=True).start()
    sys.stderr.write("error: lost connection to pod\n")


def pump(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        source.close()
        sink.close()


sys.exit(main())
