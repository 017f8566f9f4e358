"""Files that are no good are one clear line each, and none of them can hurt."""

from pathlib import Path

import pytest

from diptych.config.documents import MAX_BYTES, read_documents
from diptych.errors import ConfigError

ALIAS_BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
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
        pytest.param(b"", "is empty", id="an empty file"),
        pytest.param(b"# nothing\n---\n", "is empty", id="only a comment"),
        pytest.param(
            b"\xff\xfe\x00", "line 1: is not UTF-8 text; save the file as UTF-8", id="UTF-16"
        ),
        pytest.param(
            b"a: 1\nb: \xe9", "line 2: is not UTF-8 text; save the file as UTF-8", id="Latin-1"
        ),
        pytest.param(b"a" * (MAX_BYTES + 1), "is larger than 1 MiB", id="a huge file"),
        pytest.param(b"- a\n- b\n", "must be a mapping of fields", id="a list"),
        pytest.param(
            b"a: 1\nb: 2\na: 3\n",
            'line 3: the field "a" stands twice; remove one',
            id="a key twice",
        ),
        pytest.param(
            b"a: 1\nb: {c: 1, c: 2}\n",
            'line 2: the field "c" stands twice; remove one',
            id="a key twice, further in",
        ),
        pytest.param(
            b"? [a]\n: 1\n", "line 1: a field's name must be plain text", id="a list as key"
        ),
        pytest.param(
            b"a: \x01", "holds characters that YAML does not allow", id="control characters"
        ),
        pytest.param(
            b"a: 2024-99-99",
            "holds a value that looks like a date or number and is none; quote it",
            id="a date that there is not",
        ),
        pytest.param(b"[" * 500_000, "nests more than 64 levels deep", id="a deep nesting"),
        pytest.param(
            b"a: &a [*a]", "line 1: an alias stands inside what it is an alias of", id="a circle"
        ),
        pytest.param(
            ALIAS_BOMB.encode(), "line 5: holds too many values; use fewer aliases", id="a bomb"
        ),
        pytest.param(
            MERGE_BOMB.encode(),
            "line 6: holds too many values; use fewer aliases",
            id="a bomb of merges",
        ),
    ],
)
def test_a_file_that_is_no_good_is_one_line(tmp_path: Path, content: bytes, line: str) -> None:
    path = tmp_path / "agent.yaml"
    path.write_bytes(content)
    assert problem_of(path) == line


@pytest.mark.parametrize(
    ("content", "line"),
    [
        pytest.param("a: b: c", "line 1, column 5: is not valid YAML: ", id="two colons"),
        pytest.param("a: 1\n\tb: 2", "line 2, column 1: is not valid YAML: ", id="a tab"),
        pytest.param("a: [1", "line ", id="an open bracket"),
        pytest.param("a: *x", "line 1, column 4: is not valid YAML: ", id="an alias of nothing"),
        pytest.param(
            "a: !!python/object:os.system x",
            "line 1, column 4: is not valid YAML: could not determine a constructor for the tag",
            id="a tag of Python's",
        ),
    ],
)
def test_a_mistake_of_syntax_has_its_line(tmp_path: Path, content: str, line: str) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(content)
    assert problem_of(path).startswith(line)


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
