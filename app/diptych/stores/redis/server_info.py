"""What a Redis server says about itself: can it be used, and is it safe for runs?"""

import re
from dataclasses import dataclass

from diptych.stores.redis.locator import Unreachable

MIN_VERSION = 7


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """A server, and `notes` on unsafe settings.

    `instance_id` changes with each start of the server; Redis calls it `run_id`.
    """

    instance_id: str = ""
    notes: tuple[str, ...] = ()


def read_info(found: bytes) -> ServerInfo:
    """Read the reply to INFO. Raises `Unreachable` for a server that cannot be used."""
    lines = found.decode("utf-8", "replace").splitlines()
    facts = dict(line.split(":", 1) for line in lines if ":" in line)
    version = facts.get("redis_version", "")
    number = re.match(r"\d+", version)
    if not number or int(number[0]) < MIN_VERSION:
        raise Unreachable(
            f"the store is Redis {version or 'of no version'}; "
            f"Redis {MIN_VERSION} or newer is needed",
            is_settled=True,
        )
    if facts.get("loading", "0") != "0":
        raise Unreachable("the store is still loading what it had saved")
    if facts.get("role") == "slave":
        raise Unreachable("the store is a replica, which takes no writes: name its master")
    return ServerInfo(facts.get("run_id", ""), _notes(facts))


def _notes(facts: dict[str, str]) -> tuple[str, ...]:
    notes = []
    policy = facts.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        notes.append(f"maxmemory-policy is {policy}: Redis may drop runs; set it to noeviction")
    if facts.get("aof_enabled") == "0":
        notes.append("appendonly is off: runs are lost when Redis restarts; set it to yes")
    return tuple(notes)
