"""`diptych init`: what it writes is valid, runs as it is, and replaces nothing."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from diptych.manifest.loader import LocalOptions, load_agents
from diptych.manifest.providers import PROVIDERS

Type = Callable[..., Any]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for provider in PROVIDERS.values():
        monkeypatch.delenv(provider.key_variable or "NONE", raising=False)


def test_without_a_key_it_runs_on_a_script(
    typed: Type, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    outcome = typed("init", "helper")
    assert outcome.code == 0
    assert "diptych chat agent.yaml" in outcome.out
    assert "set OPENAI_API_KEY and remove container.env from agent.yaml" in outcome.out
    monkeypatch.chdir(tmp_path / "helper")
    assert typed("check", "agent.yaml").out == "agent.yaml: helper: ok\n"
    ran = typed("run", "agent.yaml", "How many words has it?")
    assert (ran.code, ran.out) == (0, "It has 4 words.\n")
    assert 'count_words(text="the quick brown fox")\n  ✓ 4' in ran.err
    tested = subprocess.run(
        [sys.executable, "test_agent.py"], check=False, capture_output=True, text=True
    )
    assert tested.stdout == "ok: the tool was called, and the agent answered\n", tested.stderr


@pytest.mark.parametrize("provider", PROVIDERS)
def test_with_a_provider_it_asks_that_one(typed: Type, provider: str) -> None:
    outcome = typed("init", "helper", "--provider", provider)
    one = PROVIDERS[provider]
    assert (f"First set {one.key_variable}" in outcome.out) == bool(one.secret)
    file = Path("helper/agent.yaml")
    model = yaml.safe_load(file.read_text())["spec"]["model"]
    assert (model["provider"], "apiKey" in model) == (provider, bool(one.secret))
    environ = {one.key_variable: "k", "AZURE_OPENAI_ENDPOINT": "https://x.azure.com"}
    (config,) = load_agents([file], LocalOptions(environ)).resolve(["http://127.0.0.1:1"])
    assert config.mock_responses is None


def test_the_first_key_that_is_set_chooses_the_provider(
    typed: Type, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MISTRAL_API_KEY", "k")
    (tmp_path / "My Agents").mkdir()
    monkeypatch.chdir(tmp_path / "My Agents")
    assert typed("init").code == 0
    content = yaml.safe_load(Path("agent.yaml").read_text())
    assert content["metadata"]["name"] == "my-agents"
    assert content["spec"]["model"]["provider"] == "mistral"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["My_Agent"], "such as my-agent"),
        (["helper", "--provider", "olama"], '; did you mean "ollama"?'),
        (["full"], "full/tools.py is there already; choose another name or folder"),
        (["file"], "file: cannot be written: File exists"),
    ],
)
def test_a_mistake_writes_nothing(typed: Type, words: list[str], said: str) -> None:
    Path("full").mkdir()
    Path("full/tools.py").write_text("mine")
    Path("file").write_text("mine")
    outcome = typed("init", *words)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.endswith(f"{said}\n")
    assert sorted(path.name for path in Path().rglob("*") if path.is_file()) == ["file", "tools.py"]
