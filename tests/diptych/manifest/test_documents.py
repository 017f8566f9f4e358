"""Files that are no good are one clear line each, and none of them can hurt."""

import json
from pathlib import Path
from typing import Any

import pytest

from diptych.core.errors import ConfigError
from diptych.manifest.documents import MAX_BYTES, read_documents

ALIAS_BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
KUBECTL = json.loads(Path("tests/recorded/kubectl-scalars.json").read_text())
MERGE_BOMB = "a: &a {x: 1}\n" + "".join(
    f"{name}: &{name} {{<<: [{', '.join([f'*{before}'] * 9)}]}}\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


def problem_of(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        read_documents(path)
    (line,) = caught.value.problems
    return line.removeprefix(f"{path}: ")


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"", "is empty"),
        (b"# nothing\n---\n", "is empty"),
        (b"\xff\xfe\x00", "line 1: is not UTF-8 text; save the file as UTF-8"),
        (b"a: 1\nb: \xe9", "line 2: is not UTF-8 text; save the file as UTF-8"),
        (b"a" * (MAX_BYTES + 1), "is larger than 1 MiB"),
        (b"- a\n- b\n", "must be a mapping of fields"),
        (b"a: 1\nb: 2\na: 3\n", 'line 3: the field "a" stands twice; remove one'),
        (b"a: 1\nb: {c: 1, c: 2}\n", 'line 2: the field "c" stands twice; remove one'),
        (b"? [a]\n: 1\n", "line 1: a field's name must be plain text"),
        (b"a: \x01", "holds characters that YAML does not allow"),
        (
            b"a: 1\nb: !!int 5",
            "line 2: !!int is read as a tag of YAML; quote the text, or remove the tag",
        ),
        (
            b"when: !args.x",
            "line 1: !args.x is read as a tag of YAML; quote the text, or remove the tag",
        ),
        (b"[" * 500_000, "nests more than 64 levels deep"),
        (b"a: &a [*a]", "line 1: an alias stands inside what it is an alias of"),
        (ALIAS_BOMB.encode(), "line 5: holds too many values; use fewer aliases"),
        (MERGE_BOMB.encode(), "line 6: holds too many values; use fewer aliases"),
    ],
)
def test_a_file_that_is_no_good_is_one_line(tmp_path: Path, content: bytes, line: str) -> None:
    path = tmp_path / "agent.yaml"
    path.write_bytes(content)
    assert problem_of(path) == line


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("a:\n x\n y: c", "line 3, column 3: is not valid YAML: "),
        ("a: 1\n\tb: 2", "line 2, column 1: is not valid YAML: "),
        ("a: [1", "line "),
        ("a:\n- *x", "line 2, column 3: is not valid YAML: "),
        (
            "a: !!python/object:os.system x",
            "line 1: !!python/object:os.system is read as a tag of YAML",
        ),
    ],
)
def test_a_mistake_of_syntax_has_its_line(tmp_path: Path, content: str, line: str) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(content)
    problem = problem_of(path)
    assert problem.startswith(line)
    assert problem.endswith("; indent with spaces: YAML takes no tabs") == ("\t" in content)


@pytest.mark.parametrize(
    ("line", "quoted"),
    [
        ("description: Answers: fast", 'description: "Answers: fast"'),
        ("  instructions: Be kind. Note: short", 'instructions: "Be kind. Note: short"'),
        ("description: @bot", 'description: "@bot"'),
        ('- when: "a" in args.note', "- when: '\"a\" in args.note'"),
        ("  tool: *", 'tool: "*"'),
        ("- match: {tool: *, agent: a*}", '- match: {tool: "*", agent: a*}'),
        ("allow: [*, pay]", 'allow: ["*", pay]'),
        ("apiKey: sk-1: 2", 'apiKey: "…"'),
        ("  value: sk-1: 2", 'value: "…"'),
    ],
)
def test_a_text_that_wants_quotes_is_shown_with_them(
    tmp_path: Path, line: str, quoted: str
) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(f"a:\n{line}\n")
    assert problem_of(path).startswith("line 2, column ")
    assert problem_of(path).endswith(f": quote the text: {quoted}")


def test_a_missing_file_and_a_directory_are_told_apart(tmp_path: Path) -> None:
    assert problem_of(tmp_path / "agent.yaml") == "there is no such file"
    assert problem_of(tmp_path) == "is a directory; name the files in it"


def test_each_of_several_documents_has_its_number_and_name(tmp_path: Path) -> None:
    path = tmp_path / "team.yaml"
    path.write_text("---\nmetadata: {name: one}\n---\n---\nmetadata: {name: NOT OK}\n---\n# end\n")
    sources = [document.source for document in read_documents(path)]
    assert sources == [f"{path}: document 1 (one)", f"{path}: document 2"]


def test_aliases_merges_and_a_byte_order_mark_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text("\ufeffa: &x {b: 1}\nc: *x\nd: {<<: *x, e: 2}\n", encoding="utf-8")
    (document,) = read_documents(path)
    assert document.content == {"a": {"b": 1}, "c": {"b": 1}, "d": {"b": 1, "e": 2}}


def same_in_go(value: Any) -> Any:
    """Give a value with its type; what is beyond 64 bits is a float there."""
    is_beyond = isinstance(value, int) and not -(2**63) <= value < 2**63
    return (float, float(value)) if is_beyond else (type(value), value)


@pytest.mark.parametrize(("text", "expected"), KUBECTL["values"].items())
def test_a_scalar_is_what_kubectl_makes_of_it(tmp_path: Path, text: str, expected: Any) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(f"a: {text}\nb: '{text}'\nc: !!str {text}\n")
    (document,) = read_documents(path)
    value, *strings = document.content.values()
    assert same_in_go(value) == same_in_go(expected)
    assert strings == [text, text]


@pytest.mark.parametrize("text", KUBECTL["refused"])
def test_what_json_has_no_number_for_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(f"a:\n- {text}\n")
    assert problem_of(path) == f"line 2: JSON has no number {text}; quote it if it is text"


@pytest.mark.parametrize(("name", "expected"), KUBECTL["names"].items())
def test_a_name_that_kubectl_would_change_is_refused(
    tmp_path: Path, name: str, expected: str | None
) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(f"b: 1\n{name}: 2\n")
    if name == expected:
        assert name in read_documents(path)[0].content
    else:
        assert problem_of(path).startswith(f'line 2: kubectl reads the name "{name}" as ')
