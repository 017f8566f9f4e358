"""`python -m bench [PART …]`: measure, and print tables."""

import argparse
import asyncio
import platform
import sys
from collections.abc import Callable
from pathlib import Path

from bench import agents, durable, guards, model_proxy, pool, speed, start, streams
from bench.processes import Backends, backends

Part = Callable[[Backends, speed.Effort], str]


def _speed(behind: Backends, effort: speed.Effort) -> str:
    return asyncio.run(speed.measure(behind, effort))


def _streams(behind: Backends, effort: speed.Effort) -> str:
    del effort
    return asyncio.run(streams.measure(behind))


def _start(behind: Backends, effort: speed.Effort) -> str:
    del effort
    return start.measure(behind)


def _agents(behind: Backends, effort: speed.Effort) -> str:
    del behind, effort
    return agents.measure()


def _durable(behind: Backends, effort: speed.Effort) -> str:
    del effort
    return asyncio.run(durable.measure(behind))


def _guards(behind: Backends, effort: speed.Effort) -> str:
    return asyncio.run(guards.measure(behind, effort))


def _model_proxy(behind: Backends, effort: speed.Effort) -> str:
    return asyncio.run(model_proxy.measure(behind, effort))


def _pool(behind: Backends, effort: speed.Effort) -> str:
    del effort
    return pool.measure(behind)


PARTS: dict[str, Part] = {
    "start": _start,
    "speed": _speed,
    "streams": _streams,
    "agents": _agents,
    "durable": _durable,
    "guards": _guards,
    "model-proxy": _model_proxy,
    "pool": _pool,
}


_WHICH = f"{', '.join(PARTS)}; all of them, if none"


def main() -> int:
    asked = _asked()
    effort = speed.Effort(
        rounds=asked.rounds,
        trees=tuple(asked.tree),
        scenarios=tuple(asked.scenario or speed.SCENARIOS),
    )
    if not Path("/proc/self/schedstat").exists():
        sys.stderr.write("error: this benchmark reads /proc, which only Linux has\n")
        return 2
    print(f"{platform.python_implementation()} {platform.python_version()}\n", flush=True)
    with backends() as behind:
        for name in asked.parts or PARTS:
            print(f"## {name}\n\n{PARTS[name](behind, effort)}\n", flush=True)
    return 0


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure, print tables.")
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="PART", help=_WHICH)
    parser.add_argument("--rounds", type=int, default=7, help="of `speed`")
    parser.add_argument("--scenario", action="append", choices=speed.SCENARIOS, help="of `speed`")
    parser.add_argument(
        "--tree", action="append", type=Path, default=[], help="another checkout to measure too"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
