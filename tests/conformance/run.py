"""Runs the conformance suites of others and writes `docs/conformance.md`.

`tools/conformance` installs the suites and starts it. `suites.yaml` says what may fail, and why.
"""

import contextlib
import functools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, TypeAlias
from xml.etree import ElementTree as ET

import yaml

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/conformance.md"
HERE = ROOT / "tests/conformance"
BIN = Path(sys.prefix) / "bin"
MODULES = Path(sys.prefix) / "conformance/node_modules"
SUITE = MODULES / "@modelcontextprotocol/conformance"
NODE = [str(MODULES / "node/bin/node"), str(SUITE / "dist/index.js")]
REVISIONS = ("2026-07-28", "2025-11-25")
SCENARIO_MS = 300_000  # a bound for what hangs; on two busy cores one took two minutes
AT_ONCE = 2
CLIENT_TESTS = tuple(
    f"tests/test_stack_{each}.py" for each in ("clients", "openai", "responses", "caller_tools")
)
START_SECONDS = 120


class Missing(Exception):
    """The suite cannot be had on this machine; the message says why."""


@dataclass(frozen=True)
class Result:
    """A scenario or test: the ids of its failed checks, and the reasons of what it skipped."""

    name: str
    failed: frozenset[str] = frozenset()
    skipped: frozenset[str] = frozenset()
    checks: int = 1
    unscored: str = ""
    """Why the suite does not count it: `extension`, `pending` …"""

    @property
    def is_skipped(self) -> bool:
        return not self.checks and bool(self.skipped)


@dataclass(frozen=True)
class Verdict:
    excused: dict[str, list[str]]
    """Failed scenarios, or `scenario:check`, by the reason why they may fail."""
    unexpected: dict[str, list[str]]
    """Other failed checks, by scenario."""
    stale: list[str]
    """What may fail and does not."""

    def surprises(self) -> list[str]:
        return [
            *(f"{name} fails: {', '.join(checks)}" for name, checks in self.unexpected.items()),
            *(f"{name} passes: it must leave the list of what may fail" for name in self.stale),
        ]


def judge(results: list[Result], reasons: Mapping[str, str]) -> Verdict:
    """Compare results with the reasons why a `scenario` or `scenario:check` may fail."""
    excused: dict[str, list[str]] = {}
    unexpected: dict[str, list[str]] = {}
    for result in results:
        for check in sorted(result.failed):
            name = result.name if result.name in reasons else f"{result.name}:{check}"
            if name not in reasons:
                unexpected.setdefault(result.name, []).append(check)
            elif name not in excused.setdefault(reasons[name], []):
                excused[reasons[name]].append(name)
    failed = {name for names in excused.values() for name in names}
    ran = {result.name for result in results}
    stale = [name for name in reasons if name not in failed and name.rsplit(":")[0] in ran]
    return Verdict(excused, unexpected, stale)


# MCP


def suite_version() -> str:
    if not (SUITE / "package.json").exists():
        raise Missing("npm did not install @modelcontextprotocol/conformance")
    return str(json.loads((SUITE / "package.json").read_text())["version"])


def required(revision: str, leg: str) -> dict[str, str]:
    """Return a leg's scenarios; the value says why one is not scored, "" if it is."""
    found = yaml.safe_load((SUITE / f"requirements/{revision}.yaml").read_text())
    return dict.fromkeys(found[leg], "") | {
        each["scenario"]: each["reason"] for each in found["not_scored"] if each["leg"] == leg
    }


def read_checks(name: str, folder: Path, unscored: str, *problems: str) -> Result:
    """Read the `checks.json` below a folder; `problems` are failures that no check names."""
    checks = [
        check for file in folder.rglob("checks.json") for check in json.loads(file.read_text())
    ]
    failed = {check["id"] for check in checks if check["status"] in ("FAILURE", "WARNING")}
    return Result(
        name,
        frozenset(failed or problems or ([] if checks else ["not-run"])),
        frozenset(
            check.get("errorMessage") or check["description"]
            for check in checks
            if check["status"] == "SKIPPED"
        ),
        sum(check["status"] == "SUCCESS" for check in checks),
        unscored,
    )


def mcp_client(revision: str) -> tuple[str, list[Result]]:
    version = suite_version()

    def played(scenario: str, unscored: str) -> Result:
        with tempfile.TemporaryDirectory() as folder:
            driver = f"{sys.executable} {HERE / 'mcp_client.py'}"
            command = ["client", "--scenario", scenario, "--spec-version", revision, "--force"]
            options = ["--timeout", str(SCENARIO_MS), "-o", folder, "--command", driver]
            ended = subprocess.run([*NODE, *command, *options], capture_output=True, check=False)
            if ended.returncode:
                sys.stderr.buffer.write(ended.stdout + ended.stderr)
            problems = ["client-failed"] if ended.returncode else []
            return read_checks(scenario, Path(folder), unscored, *problems)

    scenarios = required(revision, "client")
    with ThreadPoolExecutor(AT_ONCE) as threads:
        return version, [*threads.map(played, scenarios, scenarios.values())]


def mcp_server(revision: str) -> tuple[str, list[Result]]:
    version = suite_version()
    with tempfile.TemporaryDirectory() as folder, served("examples/echo.yaml") as url:
        command = ["server", "--url", f"{url}/mcp", "--requirements", revision, "-o", folder]
        subprocess.run([*NODE, *command], stdout=sys.stderr, check=False)
        results = []
        for name, unscored in required(revision, "server").items():
            (found,) = Path(folder).glob(f"server-{name}-20*")
            results.append(read_checks(name, found, unscored))
    return version, results


@contextlib.contextmanager
def served(manifest: str) -> Iterator[str]:
    """Serve a file's first agent with `diptych serve` on a free port; yields its URL."""
    command = [str(BIN / "diptych"), "serve", manifest, "--port", "0", "--data", "none"]
    environ = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}"}
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(command, cwd=ROOT, env=environ, stdout=out, stderr=out)
        try:
            for _ in range(START_SECONDS * 10):
                out.seek(0)
                if found := re.search(r"http://127\.0\.0\.1:\d+", out.read()):
                    urllib.request.urlopen(f"{found[0]}/health", timeout=10).close()
                    break
                time.sleep(0.1)
            else:
                raise SystemExit(f"{manifest} is not served after {START_SECONDS} s")
            yield found[0]
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


# pytest


def read_junit(file: Path) -> list[Result]:
    """Read the results of tests; a test of several parameters is several results."""
    results = []
    for case in ET.parse(file).iter("testcase"):
        bad = [*case.iter("failure"), *case.iter("error")]
        skips = {" ".join((each.get("message") or "").split()) for each in case.iter("skipped")}
        results.append(
            Result(
                f"{case.get('classname')}::{case.get('name')}",
                frozenset(each.tag for each in bad),
                frozenset(skips),
                0 if skips or bad else 1,
            )
        )
    return results


def a2a_tck() -> tuple[str, list[Result]]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "tck.xml"
        command = ["sh", str(ROOT / "tools/a2a_tck"), str(BIN), str(out)]
        ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if ended.returncode:
            raise Missing("tools/a2a_tck could not get the kit")
        files = sorted(out.glob("*.xml")) if out.is_dir() else [out]
        return ended.stdout.strip(), [result for file in files for result in read_junit(file)]


def own_tests(*tests: str) -> list[Result]:
    """Run tests of this repository that talk to the software of others."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "junit.xml"
        command = [str(BIN / "pytest"), "-q", "--no-cov", f"--junitxml={out}", *tests]
        subprocess.run(command, cwd=ROOT, stdout=sys.stderr, check=False)
        return read_junit(out)


def upstream_habits() -> tuple[str, list[Result]]:
    return "", own_tests("tests/diptych/models/test_upstream_habits.py")


def chat_clients() -> tuple[str, list[Result]]:
    results = own_tests(*CLIENT_TESTS)
    found = {f"{name} {metadata.version(name)}" for name in ("langchain-openai", "openai")}
    for wanted in (ROOT / "tests/clients").glob("*/requirements.in"):
        pinned = dict(
            re.findall(r"(?m)^([\w-]+)==([^\s;]+)", wanted.with_suffix(".txt").read_text())
        )
        names = re.findall(r"(?m)^[\w-]+", wanted.read_text())
        found |= {f"{name} {pinned[name]}" for name in names if name in pinned}
    for package in (ROOT / "tests/clients").glob("*/package.json"):
        dependencies = json.loads(package.read_text())["dependencies"]
        found |= {
            f"{name} {version}"
            for name, version in dependencies.items()
            if name not in ("node", "zod")
        }
    return ", ".join(sorted(found)), results


def chat_templates() -> tuple[str, list[Result]]:
    command = [sys.executable, "-m", "bench.models", "--quick", "templates"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    played = re.findall(r"^(\S+) \| (\d+) refused", ended.stderr, re.MULTILINE)
    if not played:
        raise Missing("no model server (tools/llm)")
    return "llama.cpp's", [
        Result(name, frozenset({"refused"} if int(refused) else ())) for name, refused in played
    ]


# The page


INTRODUCTION = """# Conformance

Written by `make conformance`; do not edit. Suites of others run against Diptych as it is served,
and tests of this repository against the software of others. What may fail stands, with its reason,
in `tests/conformance/suites.yaml`. `make conformance` fails if anything else fails, if something of
that list passes, and if a suite cannot be run."""
COLUMNS = """| suite | version | passed | expected to fail | skipped | failed |
| --- | --- | --- | --- | --- | --- |"""
Run: TypeAlias = Callable[[], tuple[str, list[Result]]]
RUNS: dict[str, Run] = {
    **{f"mcp-client@{each}": functools.partial(mcp_client, each) for each in REVISIONS},
    **{f"mcp-server@{each}": functools.partial(mcp_server, each) for each in REVISIONS},
    "a2a-tck": a2a_tck,
    "chat-templates": chat_templates,
    "upstream-habits": upstream_habits,
    "chat-clients": chat_clients,
}
"""Each returns the suite's version and the results, or raises `Missing`."""


def counts(results: list[Result], verdict: Verdict) -> list[str]:
    scored = [result for result in results if not result.unscored]
    failed = [result.name for result in scored if result.failed]
    unexpected = sum(name in verdict.unexpected for name in failed)
    skipped = sum(result.is_skipped for result in scored)
    passed = f"{len(scored) - len(failed) - skipped} of {len(scored)}"
    if (checks := sum(result.checks for result in scored)) > len(scored):
        passed += f" ({checks} checks)"
    return [passed, *map(str, (len(failed) - unexpected, skipped, unexpected))]


def section(title: str, text: str, results: list[Result], verdict: Verdict) -> str:
    """Describe a suite: its failures and skips by reason, and the scenarios that do not count."""
    skipped, unscored = dict[str, list[str]](), dict[str, list[str]]()
    for result in results:
        for reason in sorted(result.skipped):
            skipped.setdefault(reason, []).append(result.name)
        if result.unscored:
            outcome = "fails" if result.failed else "skipped" if result.is_skipped else "passes"
            unscored.setdefault(f"{outcome}, {result.unscored}", []).append(result.name)
    groups = {
        "Failed": verdict.unexpected,
        "Expected to fail": verdict.excused,
        "Skipped": skipped,
        "Not scored by the suite": unscored,
    }
    lists = [
        f"{head}:\n\n" + "\n".join(f"- {reason}: {code(names)}" for reason, names in group.items())
        for head, group in groups.items()
        if group
    ]
    return "\n\n".join([f"## {title}", text.strip(), *lists])


def code(names: Sequence[str]) -> str:
    return ", ".join(f"`{name.rpartition('::')[2]}`" for name in dict.fromkeys(names))


def row_of(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def parts_of(page: str) -> dict[str, tuple[str, str]]:
    """Return the row and the section of each suite of a page, by title."""
    sections = {text.partition("\n")[0]: f"## {text.strip()}" for text in page.split("\n## ")[1:]}
    rows = re.findall(r"(?m)^(\| \[?([^]|]+?)\]?(?:\(#.*?\))? \| .*)$", page)
    return {title: (row, sections.get(title, "")) for row, title in rows}


def run_suite(title: str, suite: Mapping[str, Any], run: Run) -> tuple[str, str, bool]:
    """Run a suite; returns its row, its section, and whether nothing surprises."""
    print(f"\n=== {title}", file=sys.stderr)
    try:
        version, results = run()
    except Missing as missing:
        print(f"\n*** {title.upper()} WAS NOT RUN: {missing}\n", file=sys.stderr)
        return row_of(title, "", f"**not run**: {missing}", "", "", ""), "", False
    excuses = suite.get("expected", ())
    verdict = judge(results, {n: each["reason"] for each in excuses for n in each["names"]})
    for surprise in verdict.surprises():
        print(f"*** {title}: {surprise}", file=sys.stderr)
    anchor = re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")
    row = row_of(f"[{title}](#{anchor})", version, *counts(results, verdict))
    return row, section(title, suite["text"], results, verdict), not verdict.surprises()


def main(asked: list[str]) -> int:
    """Run all suites, or those asked for, and write their parts of the page."""
    suites = yaml.safe_load((HERE / "suites.yaml").read_text())
    if unknown := [name for name in asked if not any(key.startswith(name) for key in RUNS)]:
        raise SystemExit(f"no suite is called {', '.join(unknown)}; there are {', '.join(RUNS)}")
    titles, fresh, is_well = dict[str, str](), dict[str, tuple[str, str]](), True
    for key, run in RUNS.items():
        family, _, revision = key.partition("@")
        titles[key] = f"{suites[family]['title']} {revision}".strip()
        if not asked or key.startswith(tuple(asked)):
            *part, is_sound = run_suite(titles[key], suites[family], run)
            fresh[titles[key]] = (part[0], part[1])
            is_well = is_well and is_sound
    parts = parts_of(PAGE.read_text() if PAGE.exists() else "") | fresh
    shown = [parts[title] for title in titles.values() if title in parts]
    table = "\n".join([COLUMNS, *(row for row, _ in shown)])
    sections = [section for _, section in shown if section]
    PAGE.write_text("\n\n".join([INTRODUCTION, table, *sections]) + "\n")
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
