"""Where runs are kept: what a manifest may say of it, and what the pod is given."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from diptych.core.errors import ConfigError
from diptych.manifest import API_VERSION, REFERENCES
from diptych.manifest.loader import LocalOptions, check_files, load_agents
from diptych.manifest.settings import AgentConfig

URL = {"urlFrom": {"secretKeyRef": {"name": "redis", "key": "url"}}}
SERVICE = {"serviceRef": {"name": "redis"}}


def manifest(
    sessions: Any = None, *, metadata: dict[str, Any] | None = None, **spec: Any
) -> dict[str, Any]:
    model = {"name": "m", "endpoint": "https://models.example.com/v1"}
    if sessions is not None:
        spec["sessions"] = sessions
    return {
        "apiVersion": API_VERSION,
        "kind": "Agent",
        "metadata": {"name": "coordinator", **(metadata or {})},
        "spec": {"model": model, **spec},
    }


def write(folder: Path, *contents: dict[str, Any]) -> Path:
    file = folder / "agent.yaml"
    file.write_text(yaml.safe_dump_all(contents))
    return file


def loaded(file: Path, options: LocalOptions) -> AgentConfig:
    agents = load_agents([file], options)
    return agents.resolve([f"http://127.0.0.1:{8001 + n}" for n in range(len(agents.names))])[0]


def loose_ends(file: Path, options: LocalOptions) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_agents([file], options)
    lines = [line.removeprefix(f"{file}: ") for line in caught.value.problems]
    return [re.sub(r"^line \d+: ", "", line) for line in lines]


def test_check_minds_replicas_without_redis_and_follows_no_reference(tmp_path: Path) -> None:
    needed = "replicas above 1 need sessions.redis: without it each pod knows its own sessions only"
    file = write(tmp_path, manifest(replicas=2))
    assert check_files([file]).problems == [f"{file}: line 6: spec: {needed}"]
    for content in (manifest(replicas=0), manifest({"redis": SERVICE}, replicas=2)):
        assert check_files([write(tmp_path, content)]).problems == []


# ---- on a laptop


def test_a_url_comes_from_where_other_keys_come_from(tmp_path: Path) -> None:
    environ = {"REDIS_URL": "redis://:sesame@localhost:6379/0"}
    file = write(tmp_path, manifest({"redis": URL, "retention": "2h"}))
    store = loaded(file, LocalOptions(environ)).store
    assert store is not None
    assert store.url() == "redis://:sesame@localhost:6379/0"
    assert (store.retention, store.prefix) == (7200, "diptych:default:coordinator")
    environ["REDIS_URL"] = "redis://elsewhere"
    assert store.url() == "redis://elsewhere"
    assert "sesame" not in repr(store)


@pytest.mark.parametrize(
    ("adopted", "prefix"),
    [
        ("0b0e-1", "diptych:default:coordinator:agent:0b0e-1"),
        ("coordinator", "diptych:default:coordinator"),
        ("old/0b0e-1", "diptych:default:old:agent:0b0e-1"),
        ("old/old", "diptych:default:old"),
    ],
)
def test_a_laptop_adopts_what_a_manifest_says(tmp_path: Path, adopted: str, prefix: str) -> None:
    content = manifest({"redis": URL, "adopt": adopted, "onDelete": "keep"})
    options = LocalOptions({"REDIS_URL": "redis://localhost"})
    store = loaded(write(tmp_path, content), options).store
    assert store is not None
    assert store.prefix == prefix


@pytest.mark.parametrize(
    ("name", "address", "url"),
    [
        ("redis", "redis://localhost:6379", "redis://localhost:6379"),
        ("redis", "rediss://r.example/2", "rediss://r.example/2"),
        ("redis", "[::1]:6379", "redis://[::1]:6379"),
        ("redis", "localhost", "redis://localhost"),
        ("team/redis", "localhost:1", "redis://localhost:1"),
    ],
)
def test_a_service_is_where_the_option_says(
    tmp_path: Path, name: str, address: str, url: str
) -> None:
    content = manifest({"redis": SERVICE}, metadata={"namespace": "team"})
    store = loaded(write(tmp_path, content), LocalOptions(services={name: address})).store
    assert store is not None
    assert store.url() == url
    assert store.prefix == "diptych:team:coordinator"


NO_ADDRESS = "must be where a Redis is, such as redis://localhost:6379 or localhost:6379"


@pytest.mark.parametrize(
    ("sessions", "services", "line"),
    [
        (
            {"redis": URL},
            {},
            (
                "spec.sessions.redis.urlFrom: key url of Secret redis is missing; "
                "set REDIS_URL, or give --secrets FILE"
            ),
        ),
        (
            {"redis": SERVICE},
            {},
            (
                "spec.sessions.redis.serviceRef: Service redis has no address here; "
                "give --service redis=redis://localhost:6379"
            ),
        ),
        ({"redis": SERVICE}, {"redis": "http://localhost:6379"}, f"--service redis: {NO_ADDRESS}"),
        ({"redis": SERVICE}, {"redis": "localhost:65536"}, f"--service redis: {NO_ADDRESS}"),
        (
            {"redis": SERVICE},
            {"redis": "redis://:sesame@localhost"},
            (
                "--service redis: must not hold a user or password; "
                "use sessions.redis.urlFrom for that"
            ),
        ),
    ],
)
def test_an_address_that_is_missing_or_none_is_one_line(
    tmp_path: Path, sessions: dict[str, Any], services: dict[str, str], line: str
) -> None:
    file = write(tmp_path, manifest(sessions))
    assert loose_ends(file, LocalOptions(services=services)) == [line]


# ---- in a pod


def in_a_pod(folder: Path, sessions: dict[str, Any]) -> AgentConfig:
    metadata = {"namespace": "team", "annotations": {REFERENCES: str(folder)}}
    return loaded(write(folder, manifest(sessions, metadata=metadata)), LocalOptions())


def test_a_mounted_url_may_come_and_change_and_is_named_while_it_is_missing(
    tmp_path: Path,
) -> None:
    config = in_a_pod(tmp_path, {"redis": URL})
    assert config.store is not None
    assert config.store.url() is None
    assert config.store.setting == "", "a wrong one may come right: it is not refused at the start"
    assert {name: read() for name, read in config.mounted_keys.items()} == {
        "url of Secret redis": None
    }
    file = tmp_path / "secrets/redis/url"
    file.parent.mkdir(parents=True)
    file.write_text("redis://a:6379\n")
    assert config.store.url() == "redis://a:6379"
    file.write_text("redis://another:6379\n")
    assert config.store.url() == "redis://another:6379"
    assert config.mounted_keys["url of Secret redis"]() == "redis://another:6379"


@pytest.mark.parametrize(
    ("ref", "url"),
    [
        ({"name": "redis"}, "redis://redis.team:6379"),
        ({"name": "redis", "namespace": "stores", "port": 7000}, "redis://redis.stores:7000"),
    ],
)
def test_a_service_is_found_by_its_name(tmp_path: Path, ref: dict[str, Any], url: str) -> None:
    config = in_a_pod(tmp_path, {"redis": {"serviceRef": ref}})
    assert config.store is not None
    assert config.store.url() == url
    assert config.mounted_keys == {}
