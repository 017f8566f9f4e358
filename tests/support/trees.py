"""Trees of agents on loopback, and whether what the top's caller was told is what happened."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

from support.stack import Stage, agent, frames, stages

from diptych.manifest.settings import PeerConfig

USAGE = {"prompt_tokens": 10, "completion_tokens": 2}
NOT_TOLD = frozenset({"offered", "text"})
Path = tuple[str, ...]


def delegates_to(name: str, task: str = "do it", **fields: Any) -> str:
    return json.dumps({"agent": name, "task": task, **fields})


def said(content: str, **fields: Any) -> dict[str, Any]:
    return {"content": content, "usage": USAGE, **fields}


@asynccontextmanager
async def chain(
    *leaf: Any, depth: int = 3, above: Mapping[str, Any] | None = None, **fields: Any
) -> AsyncIterator[list[Stage]]:
    """Serve agents of which each delegates to the next one; the last is scripted with `leaf`.

    Other fields are the leaf's; `above` are those of the others.
    """
    names = [f"agent-{n}" for n in range(1, depth + 1)]
    configs = [
        agent(
            said(delegates_to(callee)),
            said("{}"),
            said(f"{name} is done."),
            name=name,
            agents=(PeerConfig(callee, callee, share_context=True),),
            **(above or {}),
        )
        for name, callee in pairwise(names)
    ]
    configs.append(agent(*leaf, name=names[-1], **fields))
    async with stages(*configs) as served:
        yield served


async def told(top: Stage, run_id: str, *, last_id: str = "") -> list[dict[str, Any]]:
    """Follow a run to its end; gives the notices of what happened below it."""
    headers = {"Last-Event-ID": last_id} if last_id else {}
    text = (await top.http.get(f"/v1/runs/{run_id}/events", headers=headers, timeout=120)).text
    return below([frame.json for frame in frames(text) if frame.event == "delegation_progress"])


def below(notices: Sequence[Any]) -> list[dict[str, Any]]:
    """Give the events in notices, each with its path."""
    return [{**n["event"], "path": tuple(n["path"])} for n in notices if "event" in n]


async def recorded(stage: Stage, run_id: str) -> list[dict[str, Any]]:
    """Give the whole record of a run."""
    text = (await stage.http.get(f"/v1/runs/{run_id}/events")).text
    return [frame.json for frame in frames(text) if frame.id is not None]


def differences(seen: Sequence[Mapping[str, Any]], records: Mapping[Path, Any]) -> list[str]:
    """Compare what was told of each run, by its path, with that run's record, event by event."""
    strange = {event["path"] for event in seen} - records.keys()
    found = [f"{path}: no such run, and yet it was told of" for path in strange]
    for path, record in records.items():
        heard = {e["seq"]: e for e in seen if e["path"] == path and e["seq"]}
        order = [e["seq"] for e in seen if e["path"] == path and e["seq"]]
        if order != sorted(set(order)):
            found.append(f"{path}: told out of order or twice: {order}")
        for event in record:
            if event["event_type"] in NOT_TOLD:
                continue
            place = f"{path} {event['seq']} {event['event_type']}"
            got = heard.pop(event["seq"], None)
            if got is None:
                found.append(f"{place}: not told")
            elif got["type"] != event["event_type"]:
                found.append(f"{place}: told as {got['type']}")
            elif event["event_type"] != "model_reply" and got["content"] != event["content"]:
                found.append(f"{place}: told with {got['content']}")
            elif wrong := {
                name: value
                for name, value in got["metadata"].items()
                if event["metadata"].get(name) != value and name != "child"
            }:
                found.append(f"{place}: told with {wrong}")
        found += [f"{path} {seq}: told, and not on record" for seq in heard]
    return found


async def tree_of(stages: Sequence[Stage], run_id: str) -> dict[Path, Any]:
    """Read the record of each run of a chain below the top's, by its path."""
    found: dict[Path, Any] = {}
    path: Path = ()
    for upper, lower in pairwise(stages):
        record = await recorded(upper, run_id)
        results = [r for r in record if "child" in r["metadata"]]
        if not results:
            break
        path = (*path, results[0]["metadata"]["call_id"])
        run_id = results[0]["metadata"]["child"]["task_id"]
        found[path] = await recorded(lower, run_id)
    return found
