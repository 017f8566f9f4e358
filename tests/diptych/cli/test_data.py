"""Where sessions are kept: `--data`, the default folder of a manifest, and `store=` in Python."""

from pathlib import Path

import pytest

from diptych import Agent
from diptych.cli.data import data_folder
from diptych.core.errors import ConfigError
from diptych.manifest.settings import AgentConfig, DataFolder
from diptych.serve.adapters import RedisServers, agent_store
from diptych.stores.sqlite import SqliteStore


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    file = tmp_path / "agent.yaml"
    file.touch()
    return file


def test_a_folder_that_is_named_is_taken_and_none_is_memory(file: Path) -> None:
    assert data_folder("none", [file]) is None
    assert data_folder("here", []) == DataFolder(Path("here"))


def test_each_manifest_has_a_folder_of_its_own_below_the_state_folder(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = data_folder(None, [file])
    assert one
    assert one.is_default
    assert one.path.parent == file.parent / "state" / "diptych"
    monkeypatch.chdir(file.parent)
    assert data_folder(None, [Path("agent.yaml")]) == one
    other = file.parent / "other" / "agent.yaml"
    other.parent.mkdir()
    other.touch()
    assert data_folder(None, [other]) != one


def test_there_is_no_default_in_a_pod_or_without_a_file(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert data_folder(None, []) is None
    assert data_folder(None, [Path("/dev/null")]) is None
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert data_folder(None, [file]) is None
    assert data_folder("here", [file])


@pytest.mark.parametrize("trouble", ["held", "a file in its way"])
async def test_only_the_default_folder_is_replaced_by_memory(tmp_path: Path, trouble: str) -> None:
    folder, name = tmp_path / "data", "helper.sqlite"
    held = SqliteStore(folder / name) if trouble == "held" else None
    if held is None:
        folder.write_text("")
    why = agent_store(
        AgentConfig("helper", data=DataFolder(folder, is_default=True)), RedisServers()
    )
    assert isinstance(why, str)
    assert why.endswith("runs are kept in memory, and end with the process")
    with pytest.raises(ConfigError, match=r"^--data: .*data"):
        agent_store(AgentConfig("helper", data=DataFolder(folder)), RedisServers())
    if held:
        await held.aclose()


async def test_sessions_of_an_agent_in_python_outlive_it(tmp_path: Path) -> None:
    def agent() -> Agent:
        return Agent("helper", mock_responses=["{}", "Hello!"], store=f"sqlite:{tmp_path}")

    async with agent() as one:
        await one.run("hi", session_id="talk")
        with pytest.raises(ConfigError, match=r"Agent\('helper'\): store: .* in use"):
            await agent().start()
    async with agent() as other:
        events = await other.memory.get_session_events("talk")
        assert [event.event_type for event in events] == ["user_message", "agent_response"]


@pytest.mark.parametrize("store", ["data", "sqlite:"])
def test_a_store_that_is_no_url_is_refused(store: str) -> None:
    with pytest.raises(ConfigError, match=r"store: .*write sqlite:DIR for a folder"):
        Agent("helper", mock_responses=["x"], store=store)
