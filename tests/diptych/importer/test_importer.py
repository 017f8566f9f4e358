"""The samples of KAOS and kagent (`samples/`): what they become, and that no field is lost.

The samples were written after the fields of all versions; none is copied.
"""

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from diptych.core.errors import ConfigError
from diptych.importer import Imported, Note, Outcome, import_files
from diptych.importer.writing import document_text
from diptych.manifest.documents import FieldPath, dotted_path, parse_documents
from diptych.manifest.loader import check_files
from diptych.models.scripted import script_problems

SAMPLES = Path(__file__).parent / "samples"
MADE = Path(__file__).parent / "made"
ALL = sorted(SAMPLES.glob("*/*.yaml"))
REFUSED = {
    "kagent/byo": ["Agent kagent/crew spec.byo"],
    "kagent/kmcp-stdio": ["MCPServer tools/sealed spec.deployment"],
    "kagent/models-of-providers": [
        f"ModelConfig {name} spec.provider" for name in ("vertex", "bedrock")
    ],
    "kagent/servers": ["MCPServer kagent/search metadata.name"],
    "kaos/guessed-provider": ["ModelAPI guessed spec.proxyConfig"],
    "kaos/kubernetes-tools": [
        f"MCPServer ops/{name} spec.runtime" for name in ("cluster", "chat", "house-runtime")
    ],
    "kaos/litellm": [
        f"ModelAPI {name} spec.proxyConfig.configYaml" for name in ("routed", "hidden")
    ]
    + ["ModelAPI mixed spec.proxyConfig", "ModelAPI nowhere spec.proxyConfig"],
    "kaos/unknown-provider": ["ModelAPI nebius spec.proxyConfig"],
}
"""What cannot be made of samples, and because of which field."""
ADVICE = {
    "kagent/models-of-providers": ["gateway"],
    "kagent/byo": ["agents: [{url: http://SERVICE:8080, as: crew}]"],
}

samples = pytest.mark.parametrize("sample", ALL, ids=lambda path: f"{path.parent.name}/{path.stem}")


def name_of(sample: Path) -> str:
    return f"{sample.parent.name}/{sample.stem}"


@samples
def test_a_sample_becomes_what_check_accepts(sample: Path, tmp_path: Path) -> None:
    imported = import_files([sample])
    refused = [note for note in imported.notes if note.outcome is Outcome.REFUSED]
    shown = [f"{note.title} {dotted_path(note.path)}".strip() for note in refused]
    assert shown == REFUSED.get(name_of(sample), [])
    assert imported.is_whole is not bool(refused)
    told = " ".join(note.text for note in refused)
    assert all(advice in told for advice in ADVICE.get(name_of(sample), []))
    (text,) = imported.texts.values()
    if not any(yaml.safe_load_all(text)):
        return
    (tmp_path / "made.yaml").write_text(text)
    contents = check_files([tmp_path / "made.yaml"])
    scripts = [problem for script in contents.scripts() for problem in script_problems(*script)]
    assert contents.problems + scripts + list(contents.unmatched_names()) == []


@pytest.mark.parametrize("golden", sorted(MADE.glob("*.yaml")), ids=lambda f: f.stem)
def test_a_sample_becomes_this(golden: Path) -> None:
    """To write them anew: `diptych import` each, and read the difference."""
    platform, _, name = golden.stem.partition("-")
    (text,) = import_files([SAMPLES / platform / f"{name}.yaml"]).texts.values()
    assert text == golden.read_text()


@pytest.mark.parametrize("example", [0, 1])
def test_the_page_shows_what_is_written(example: int, tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "import.md").read_text()
    blocks = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "page.yaml").write_text(blocks[2 * example])
    assert list(import_files([tmp_path / "page.yaml"]).texts.values()) == [blocks[2 * example + 1]]


def leaves(value: object, path: FieldPath = ()) -> Iterator[FieldPath]:
    inner = value.items() if isinstance(value, dict) else enumerate(value)  # type: ignore[arg-type]
    for part, each in inner:
        if isinstance(each, dict | list) and each:
            yield from leaves(each, (*path, part))
        else:
            yield (*path, part)


def put(document: Any, path: FieldPath, value: object) -> None:
    for part in path[:-1]:
        document = document[part]
    document[path[-1]] = value


def get(document: Any, path: FieldPath) -> Any:
    for part in path:
        document = document[part]
    return document


def changed(value: object) -> object:
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case str():
            return f"{value}x"
        case _:
            return ["x"]


def documents_of(sample: Path) -> list[Any]:
    documents = list(yaml.safe_load_all(sample.read_text()))
    return documents[0]["items"] if documents[0]["kind"] == "List" else documents


def imported(folder: Path, texts: list[str]) -> Imported | None:
    """Import documents; None for bad input."""
    file = folder / "changed.yaml"
    file.write_text("---\n".join(texts))
    try:
        return import_files([file])
    except ConfigError:
        return None


@samples
def test_every_field_is_translated_or_named(sample: Path, tmp_path: Path) -> None:
    """Another value of a field makes another object, or is named as changed, dropped or wrong."""
    documents = documents_of(sample)
    texts = [document_text(document) for document in documents]
    before = imported(tmp_path, texts)
    assert before
    platforms = ("kaos", "kagent", "ethical")
    for number, document in enumerate(documents):
        if not any(group in document["apiVersion"] for group in platforms):
            continue
        fields = [path for path in leaves(document) if "spec" in path or "labels" in path]
        for path in fields:
            mutant = copy.deepcopy(document)
            put(mutant, path, changed(get(document, path)))
            texts[number] = document_text(mutant)
            after = imported(tmp_path, texts)
            if after is None or after.texts != before.texts:
                continue
            title = re.compile(rf"{document['kind']} (\S+/)?{document['metadata']['name']}")
            notes = [note for note in after.notes if title.fullmatch(note.title)]
            assert any(names(note, path) for note in notes), f"{title.pattern} {dotted_path(path)}"
        texts[number] = document_text(document)


def names(note: Note, path: FieldPath) -> bool:
    is_of_field = path[: len(note.path)] == note.path and note.outcome is not Outcome.KEPT
    return is_of_field or note.outcome is Outcome.REFUSED  # the whole object


@samples
def test_a_value_of_a_wrong_form_is_an_error_or_a_note(sample: Path, tmp_path: Path) -> None:
    documents = documents_of(sample)
    texts = [document_text(document) for document in documents]
    wrong: list[object] = [7, "x", [1], {"a": {}}, True, None, "", -1]
    for number, document in enumerate(documents):
        inner = {path[:length] for path in leaves(document) for length in range(1, len(path) + 1)}
        for turn, path in enumerate(sorted(inner, key=str)):
            mutant = copy.deepcopy(document)
            put(mutant, path, wrong[turn % len(wrong)])
            texts[number] = document_text(mutant)
            imported(tmp_path, texts)  # nothing but `ConfigError` comes out of it
        texts[number] = document_text(document)


def test_a_note_says_whether_a_value_is_another() -> None:
    notes = import_files([SAMPLES / "kagent" / "house.yaml"]).notes
    outcomes = {dotted_path(note.path): note.outcome for note in notes}
    assert outcomes["spec.openAI.temperature"] is Outcome.KEPT
    assert outcomes["spec.openAI.timeout"] is Outcome.CHANGED  # 90 is "90s"
    assert outcomes["spec.openAI.topP"] is Outcome.DROPPED


def test_keys_are_never_repeated() -> None:
    keys = ("sk-very-secret-000", "eyJ-secret-token")
    for sample in ALL:
        result = import_files([sample])
        shown = "".join(result.texts.values()) + "".join(note.text for note in result.notes)
        assert not any(key in shown for key in keys)
    assert all(any(key in sample.read_text() for sample in ALL) for key in keys)


def test_objects_of_several_files_find_each_other(tmp_path: Path) -> None:
    """A server beside its agent is ours; one that is not there stays where it is."""
    agent, server = documents_of(SAMPLES / "kagent" / "house.yaml")[2:0:-1]
    files = [tmp_path / "agent.yaml", tmp_path / "server.yaml"]
    for file, document in zip(files, (agent, server), strict=True):
        file.write_text(yaml.safe_dump(document))
    assert tools_of(import_files(files))[0]["ref"] == {"name": "cluster-tools"}
    elsewhere = {"apiGroup": "kagent.dev", "kind": "RemoteMCPServer", "name": "cluster-tools"}
    assert tools_of(import_files(files[:1]))[0]["ref"] == elsewhere


def tools_of(result: Imported) -> list[dict[str, Any]]:
    made = [document for text in result.texts.values() for document in yaml.safe_load_all(text)]
    (agent,) = (document for document in made if document["kind"] == "Agent")
    tools: list[dict[str, Any]] = agent["spec"]["tools"]
    return tools


def test_a_second_object_of_a_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "twice.yaml").write_text((SAMPLES / "kaos" / "pod-spec.yaml").read_text())
    result = import_files([SAMPLES / "kaos" / "pod-spec.yaml", tmp_path / "twice.yaml"])
    assert [note.text for note in result.notes if note.outcome is Outcome.REFUSED] == [
        "Agent placed has become an object of this name"
    ]


@pytest.mark.parametrize(
    ("sample", "old", "new", "problem"),
    [
        ("kaos/echo", "kind: Agent", "kind: [", "line 36, column 7: is not valid YAML"),
        ("kaos/echo", "mode: Hosted", "mode: Both", "line 13: spec.mode: must be one of Proxy"),
        ("kaos/echo", "  modelAPI: small-model\n", "", "line 39: spec.modelAPI: is required"),
        ("kaos/echo", "\n  - thermometer", " x", "line 41: spec.mcpServers: must be a list"),
        ("kaos/list", "gpt-5-mini", "5", "line 20: spec.model: has a form that cannot be read"),
        ("kagent/models", "azureEndpoint:", "x:", "line 10: spec.azureOpenAI.azureEndpoint: is"),
        ("kagent/house", "http://cluster-tools.kagent:8084/mcp", "3", "line 27: spec.url: must be"),
        ("kagent/team", "name: billing}\n", "as: b}\n", "line 11: spec.declarative.tools[0].agent"),
    ],
)
def test_bad_input_names_line_and_field(
    sample: str, old: str, new: str, problem: str, tmp_path: Path
) -> None:
    text = (SAMPLES / f"{sample}.yaml").read_text()
    assert old in text
    (tmp_path / "bad.yaml").write_text(text.replace(old, new, 1))
    with pytest.raises(ConfigError) as caught:
        import_files([tmp_path / "bad.yaml"])
    assert problem in caught.value.problems[0]


words = st.text(st.sampled_from("aye1on0x_-. :#'\"\\\n\t~|{é\u2028"), max_size=12)


names_of_fields = st.text(st.sampled_from("aye1on0x_-. :#'\"\\~|{é"), min_size=1, max_size=12)


@given(st.dictionaries(names_of_fields, words | st.lists(words), min_size=1))
def test_what_is_written_is_read_as_the_same(spec: dict[str, Any]) -> None:
    content = {"kind": "ConfigMap", "spec": spec}
    comments = [(("spec", key, 0), f"{key} is a comment") for key in spec] + [(("spec",), "a #\nb")]
    (document,) = parse_documents(Path("made.yaml"), document_text(content, comments))
    assert document.content == content
