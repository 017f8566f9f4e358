"""`diptych import` as a person types it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Type = Callable[..., Any]
SAMPLES = Path(__file__).parents[2] / "importer" / "samples"


def sample(name: str) -> str:
    return str(SAMPLES / f"{name}.yaml")


def test_stdout_has_the_manifests_and_stderr_the_table(typed: Type) -> None:
    done = typed("import", sample("kaos/proxy-key-in-plain-text"), sample("kaos/unknown-provider"))
    assert done.code == 1
    made = (SAMPLES.parent / "made" / "kaos-proxy-key-in-plain-text.yaml").read_text()
    assert done.out.startswith(f"{made}---\n# ModelAPI nebius: no OpenAI-compatible address")
    table = done.err.splitlines()
    assert table[0] == "ModelAPI nebula"
    rows = {line.split()[0]: line.split(maxsplit=1)[1] for line in table if line[0] == " "}
    assert rows["spec.proxyConfig.apiBase"] == "kept     spec.endpoint"
    assert rows["spec.proxyConfig.apiKey.value"] == (
        "changed  spec.apiKey: a manifest holds no key: run `kubectl create secret generic "
        "nebula-key --from-literal=api-key=…`"
    )
    assert rows["spec.proxyConfig.provider"] == "dropped  the endpoint is asked itself"
    assert rows["spec.proxyConfig"].startswith("refused  no OpenAI-compatible address")


def test_a_folder_gets_a_file_for_each(typed: Type, tmp_path: Path) -> None:
    names = ("kaos/echo", "kagent/house")
    words = ("import", *map(sample, names), "-o", str(tmp_path / "made"))
    assert typed(*words).code == 0
    made = sorted((tmp_path / "made").iterdir())
    assert [path.name for path in made] == ["echo.yaml", "house.yaml"]
    assert typed("check", *map(str, made)).code == 0
    again = typed(*words)
    assert (again.code, "is there already" in again.err, again.out) == (2, True, "")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: [", "line 2, column 1: is not valid YAML"),
        ("apiVersion: v1\nkind: Secret\n", "there is no object of KAOS or kagent in it"),
        ("", "is empty"),
    ],
)
def test_bad_input_is_a_line_and_exit_code_2(
    text: str, problem: str, typed: Type, tmp_path: Path
) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    done = typed("import", str(tmp_path / "bad.yaml"), "-o", str(tmp_path / "made"))
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"error: {tmp_path / 'bad.yaml'}: {problem}")
    assert not (tmp_path / "made").exists()
