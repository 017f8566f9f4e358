"""Where a laptop and a pod find secrets, and that they take up changes."""

import base64
import os
from pathlib import Path

import pytest

from diptych.core.errors import ConfigError
from diptych.manifest.documents import Document, SourceLocation
from diptych.manifest.secret_sources import Reference, SecretSources, value_from_file

API_KEY = Reference("Secret", "models", "api-key")


def secret(namespace: str = "default", **fields: object) -> Document:
    metadata = {"name": "models", "namespace": namespace}
    return Document(SourceLocation("team.yaml"), {"kind": "Secret", "metadata": metadata, **fields})


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def test_a_secret_comes_from_the_variable_named_after_it() -> None:
    environ = {"MODELS_API_KEY": "k1"}
    read = SecretSources(environ).find(API_KEY)
    assert read() == "k1"
    environ["MODELS_API_KEY"] = "k2"
    assert read() == "k2"
    environ["MODELS_API_KEY"] = ""
    assert read() is None


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("MODELS_API_KEY=k1", "k1"),
        ("  export MODELS_API_KEY = k1 # mine", "k1"),
        ("MODELS_API_KEY=k#1", "k#1"),
        ("MODELS_API_KEY='a \"b\" # c'", 'a "b" # c'),
        ('MODELS_API_KEY="a\\n\\"b\\"" # c', 'a\n"b"'),
        ("MODELS_API_KEY=a=b==", "a=b=="),
        ("MODELS_API_KEY=", None),
    ],
)
def test_a_dotenv_line_is_read(tmp_path: Path, line: str, value: str | None) -> None:
    file = tmp_path / "secrets.env"
    file.write_text(f"# keys\n\n{line}\n")
    assert SecretSources({}, file).find(API_KEY)() == value


def test_the_file_wins_over_documents_and_those_over_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "secrets.env"
    file.write_text("MODELS_API_KEY=file")
    environ, beside = {"MODELS_API_KEY": "environ"}, [secret(stringData={"api-key": "beside"})]
    assert SecretSources(environ, file, beside).find(API_KEY)() == "file"
    assert SecretSources(environ, None, beside).find(API_KEY)() == "beside"


def test_secret_manifests_hold_base64_or_plain_strings(tmp_path: Path) -> None:
    file = tmp_path / "secrets.yaml"
    file.write_text(
        "kind: Secret\nmetadata: {name: models}\n"
        f"data: {{api-key: {encoded('old')}, token: {encoded('t1' + chr(10))}}}\n"
        "stringData: {api-key: k1}\n---\n"
        "kind: ConfigMap\nmetadata: {name: prompts}\ndata: {main: Be brief.}\n"
    )
    sources = SecretSources({}, file)
    assert sources.find(API_KEY)() == "k1"
    assert sources.find(Reference("Secret", "models", "token"))() == "t1"
    assert sources.find(Reference("ConfigMap", "prompts", "main"))() == "Be brief."
    assert sources.find(Reference("Secret", "prompts", "main"))() is None


def test_the_own_namespace_comes_first_and_a_single_secret_serves_all() -> None:
    legal = secret("legal", stringData={"api-key": "legal"})
    default = secret(stringData={"api-key": "default"})
    wanted = Reference("Secret", "models", "api-key", "legal")
    assert SecretSources({}, documents=[default, legal]).find(wanted)() == "legal"
    assert SecretSources({}, documents=[default]).find(wanted)() == "default"


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("sk-secret", 'line 1: must be NAME=value or NAME="value"'),
        ('A=1\nB="x', 'line 2: must be NAME=value or NAME="value"'),
        (
            "kind: Secret\nmetadata: {name: a}\ndata: {k: '%%%'}",
            "Secret a: data.k: must be base64 of UTF-8 text",
        ),
        (
            "kind: Secret\nmetadata: {name: a}\nstringData: {k: 1}",
            "Secret a: stringData.k: must be a string; quote it",
        ),
        ("kind: Secret\ndata: {}", "metadata.name: is required"),
    ],
)
def test_a_bad_secrets_file_is_refused_without_showing_it(
    tmp_path: Path, content: str, line: str
) -> None:
    file = tmp_path / "secrets"
    file.write_text(content)
    with pytest.raises(ConfigError) as caught:
        SecretSources({}, file)
    assert caught.value.problems == (f"{file}: {line}",)


def test_a_secret_that_stands_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"team.yaml: a second Secret called models; remove one"):
        SecretSources({}, documents=[secret(), secret()])


def test_a_changed_file_is_taken_up_and_a_broken_one_is_not(tmp_path: Path) -> None:
    file = tmp_path / "secrets.env"
    file.write_text("MODELS_API_KEY=k1")
    read = SecretSources({}, file).find(API_KEY)
    file.write_text("MODELS_API_KEY=key2")
    assert read() == "key2"
    file.write_text("half a li")
    assert read() == "key2"


def test_a_mounted_secret_may_come_change_and_go(tmp_path: Path) -> None:
    file = tmp_path / "api-key"
    read = value_from_file(file)
    assert read() is None
    file.write_text("k1\n")
    assert read() == "k1"
    file.write_text("key2\n")
    assert read() == "key2"
    file.unlink()
    assert read() is None


def test_a_pipe_is_read_once_and_kept() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"MODELS_API_KEY=k1")
    os.close(writer)
    try:
        read = SecretSources({}, Path(f"/dev/fd/{reader}")).find(API_KEY)
        assert [read(), read()] == ["k1", "k1"]
    finally:
        os.close(reader)
