# ruff: noqa: INP001 - a script, no package
"""Draws mutants of the code by a seed, and says which of them the tests kill.

    make coverage PYTEST_ADDOPTS="--cov-context=test"      # which tests run which lines: .coverage
    python tools/mutants.py draw SEED COUNT > mutants.json
    python tools/mutants.py run mutants.json > verdicts.json
    python tools/mutants.py run mutants.json --only survived

A mutant is a statement of a function and its changed text, so it is found again after the code has
moved. `run` writes each mutant into the tree, runs the tests that cover its line until one fails,
and puts the file back. Verdicts: killed, survived, uncovered (no test runs the line), gone (no
function has that statement any more).
"""

import argparse
import ast
import copy
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

from coverage import CoverageData

ROOT = Path(__file__).parent.parent
AREAS = (
    *(
        f"app/diptych/{name}"
        for name in "core runs budgets policy access stores net http a2a mcp models".split()  # noqa: SIM905
    ),
    *("app/diptych_cel", "operator/diptych_operator/desired", "operator/diptych_operator/status"),
)
MOST_TESTS = 400  # of a line; the quickest files come first
MOST_CHARACTERS = 2**17  # of their names: a command line has a limit
SECONDS = 300.0  # of the tests of one mutant; a hang is a kill
_COMPARED = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq}
_COMPARED |= {ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot}
_COMPARED |= {ast.IsNot: ast.Is}
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what one node may be changed into."""
    match node:
        case ast.Compare(ops=[operator]) if type(operator) in _COMPARED:
            yield ast.Compare(node.left, [_COMPARED[type(operator)]()], node.comparators)
        case ast.BoolOp(op=operator):
            yield ast.BoolOp(ast.Or() if isinstance(operator, ast.And) else ast.And(), node.values)
        case ast.UnaryOp(op=ast.Not()):
            yield node.operand
        case ast.BinOp(op=ast.Add()):
            yield ast.BinOp(node.left, ast.Sub(), node.right)
        case ast.BinOp(op=ast.Sub()):
            yield ast.BinOp(node.left, ast.Add(), node.right)
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield ast.Constant(value + 1)
        case ast.IfExp():
            yield ast.IfExp(node.test, node.orelse, node.body)


def statement_mutants(statement: ast.stmt) -> Iterator[str]:
    """Yield the texts of a statement with one change; of a compound one only its head changes."""
    match statement:
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.AugAssign():
            yield "pass"
        case ast.Return(value=value) if value and not isinstance(value, ast.Constant):
            yield "return None"
    head = [getattr(statement, name, None) for name in ("test", "value", "exc")]
    for part in filter(None, head):
        for place, node in enumerate(ast.walk(part)):
            for changed in changes(node):
                mutant = copy.deepcopy(statement)
                _replace(mutant, part, place, changed)
                yield ast.unparse(ast.fix_missing_locations(mutant))


def _replace(mutant: ast.stmt, part: ast.AST, place: int, changed: ast.AST) -> None:
    name = next(n for n in ("test", "value", "exc") if _same(getattr(mutant, n, None), part))
    target = list(ast.walk(getattr(mutant, name)))[place]
    if place == 0:
        setattr(mutant, name, changed)
        return
    for parent in ast.walk(mutant):
        for field, value in ast.iter_fields(parent):
            if value is target:
                setattr(parent, field, changed)
            elif isinstance(value, list):
                value[:] = [changed if each is target else each for each in value]


def _same(one: ast.AST | None, other: ast.AST) -> bool:
    return one is not None and ast.dump(one) == ast.dump(other)


def statements(tree: ast.Module) -> Iterator[tuple[str, ast.stmt]]:
    """Yield each statement inside functions, with the name of the innermost function."""
    for function in (n for n in ast.walk(tree) if isinstance(n, _Function)):
        for node in ast.walk(function):
            if isinstance(node, ast.stmt) and not isinstance(
                node, (*_Function.__args__, ast.Raise)
            ):
                yield function.name, node


def draw(seed: int, count: int) -> list[dict[str, str]]:
    """Draw mutants, each area in turn, so that small areas are drawn, too."""
    chosen, found = random.Random(seed), []  # noqa: S311
    files = [f for area in AREAS for f in sorted((ROOT / area).rglob("*.py"))]
    candidates = []
    for file in files:
        for function, statement in statements(ast.parse(file.read_text())):
            text = ast.unparse(statement)
            candidates += [
                (str(file.relative_to(ROOT)), function, text, mutant)
                for mutant in statement_mutants(statement)
                if mutant != text
            ]
    by_area: dict[str, list[Any]] = {}
    for candidate in candidates:
        area = next(a for a in AREAS if candidate[0].startswith(a + "/"))
        by_area.setdefault(area, []).append(candidate)
    while len(found) < count and by_area:
        for area in list(by_area):
            found.append(by_area[area].pop(chosen.randrange(len(by_area[area]))))
            if not by_area[area]:
                del by_area[area]
    names = ("file", "function", "before", "after")
    return [dict(zip(names, each, strict=True)) for each in found[:count]]


def run(mutant: dict[str, str], data: CoverageData) -> dict[str, str]:
    """Write a mutant into the tree, run its tests, put the file back; returns it with verdict."""
    place = _find(mutant)
    if place is None:
        return {**mutant, "verdict": "gone"}
    file, statement = place
    tests = _tests(file, statement.lineno, data)
    if not tests:
        return {**mutant, "verdict": "uncovered"}
    source = file.read_text()
    lines = source.splitlines(keepends=True)
    indent = " " * statement.col_offset
    body = "".join(indent + line + "\n" for line in mutant["after"].splitlines())
    end = statement.end_lineno or statement.lineno
    file.write_text("".join(lines[: statement.lineno - 1]) + body + "".join(lines[end:]))
    try:
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-cov", "-p", "no:randomly"]
        ended = subprocess.run([*command, *tests], cwd=ROOT, capture_output=True, timeout=SECONDS)  # noqa: S603, PLW1510
        verdict = "survived" if ended.returncode == 0 else "killed"
    except subprocess.TimeoutExpired:
        verdict = "killed"
    finally:
        file.write_text(source)
    return {**mutant, "verdict": verdict}


def _find(mutant: dict[str, str]) -> tuple[Path, ast.stmt] | None:
    first = ROOT / mutant["file"]
    others = (f for area in AREAS for f in sorted((ROOT / area).rglob("*.py")))
    for file in (first, *others):
        if file.exists():
            for function, statement in statements(ast.parse(file.read_text())):
                if function == mutant["function"] and ast.unparse(statement) == mutant["before"]:
                    return file, statement
    return None


def _tests(file: Path, line: int, data: CoverageData) -> list[str]:
    contexts = data.contexts_by_lineno(str(file)).get(line, [])
    tests = {context.partition("|")[0] for context in contexts if context}
    stack_last = sorted(tests, key=lambda test: ("test_stack" in test, "chaos" in test, test))
    sizes = accumulate(len(test) + 1 for test in stack_last)
    bounded = [test for test, size in zip(stack_last, sizes, strict=True) if size < MOST_CHARACTERS]
    return bounded[:MOST_TESTS]


def main() -> None:
    """Run the verb of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("verb", choices=["draw", "run"])
    parser.add_argument("what")
    parser.add_argument("count", nargs="?", type=int, default=120)
    parser.add_argument("--only", help="mutants with this verdict")
    given = parser.parse_args()
    if given.verb == "draw":
        print(json.dumps(draw(int(given.what), given.count), indent=1))  # noqa: T201
        return
    data = CoverageData(str(ROOT / ".coverage"))
    data.read()
    verdicts = []
    for mutant in json.loads(Path(given.what).read_text()):
        if given.only in {None, mutant.get("verdict")}:
            verdicts.append(run(mutant, data))
            sys.stderr.write(f"{verdicts[-1]['verdict']:10}{mutant['file']} {mutant['function']}\n")
    print(json.dumps(verdicts, indent=1))  # noqa: T201


if __name__ == "__main__":
    main()
