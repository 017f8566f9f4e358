"""Where runs are kept: what a manifest may say of it, and what the pod is given."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from diptych.core.errors import ConfigError
from diptych.manifest import API_VERSION, REFERENCES
from diptych.manifest.documents import SourceLocation
from diptych.manifest.loader import LocalOptions, check_files, load_agents
from diptych.manifest.settings import AgentConfig
from diptych.manifest.validation import validate_manifest

URL = {"urlFrom": {"secretKeyRef": {"name": "redis", "key": "url"}}}
SERVICE = {"serviceRef": {"name": "redis"}}
NO_ADDRESS = "must be where a Redis is, such as redis://localhost:6379 or localhost:6379"
REPLICAS = (
    "spec: replicas above 1 need sessions.redis: without it each pod knows its own sessions only"
)


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


def problems_of(content: dict[str, Any]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        validate_manifest(content, SourceLocation(""))
    return list(caught.value.problems)


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
    return [line.removeprefix(f"{file}: ") for line in caught.value.problems]


# ---- what a manifest may say


@pytest.mark.parametrize(
    ("content", "line"),
    [
        pytest.param(
            manifest({"redis": {}}),
            "spec.sessions.redis: needs exactly one of urlFrom, serviceRef",
            id="a Redis nowhere",
        ),
        pytest.param(
            manifest({"redis": URL | SERVICE}),
            "spec.sessions.redis: needs exactly one of urlFrom, serviceRef",
            id="a Redis in two places",
        ),
        pytest.param(
            manifest({"redis": {"url": "redis://:sesame@r"}}),
            'spec.sessions.redis.url: is not a known field (did you mean "urlFrom"?)',
            id="a URL in the open",
        ),
        pytest.param(
            manifest({"redis": {"serviceRef": {"name": "redis", "path": "/"}}}),
            "spec.sessions.redis.serviceRef.path: is not a known field here "
            '(did you mean "spec.tools.serviceRef.path"?)',
            id="a path, which no Redis has",
        ),
        pytest.param(
            manifest({"redis": {"serviceRef": {"name": "redis", "port": 0}}}),
            "spec.sessions.redis.serviceRef.port: must be 1 or more (got 0)",
            id="no port",
        ),
        pytest.param(
            manifest({"adopt": "one"}),
            "spec.sessions: adopt needs redis: without it sessions end with their pod",
            id="another Agent's sessions, in no Redis",
        ),
        pytest.param(
            manifest({"onDelete": "purge"}),
            "spec.sessions: onDelete: purge needs redis: without it sessions end with their pod",
            id="a purge of no Redis",
        ),
        pytest.param(
            manifest({"redis": URL, "retention": "59s"}),
            'spec.sessions.retention: must be at least "1m" and at most "720h" (got "59s")',
            id="too short a retention",
        ),
        pytest.param(
            manifest({"redis": URL, "retention": "720h1ms"}),
            'spec.sessions.retention: must be at least "1m" and at most "720h" (got "720h1ms")',
            id="too long a retention",
        ),
        pytest.param(
            manifest({"redis": URL, "retention": "30d"}),
            'spec.sessions.retention: must be a duration such as "30s", "1m30s" or "500ms" '
            '(got "30d")',
            id="a unit that is none",
        ),
        pytest.param(
            manifest({"retention": "1h"}),
            "spec.sessions: retention needs redis: without it sessions end with their pod",
            id="a retention of nothing",
        ),
        pytest.param(manifest(replicas=2), REPLICAS, id="replicas without Redis"),
        pytest.param(
            manifest({"whenBusy": "enqueue"}, replicas=2),
            REPLICAS,
            id="replicas with sessions in memory",
        ),
    ],
)
def test_a_mistake_is_one_line(content: dict[str, Any], line: str) -> None:
    assert problems_of(content) == [line]


@pytest.mark.parametrize(
    ("retention", "seconds"),
    [("1m", 60), ("720h", 2_592_000), ("1h30m", 5400)],
)
def test_a_retention_is_read_as_seconds(retention: str, seconds: float) -> None:
    content = manifest({"redis": URL, "retention": retention})
    assert validate_manifest(content, SourceLocation("")).spec.sessions.retention == seconds


@pytest.mark.parametrize("replicas", [0, 1])
def test_one_replica_or_none_needs_no_redis(replicas: int) -> None:
    assert (
        validate_manifest(manifest(replicas=replicas), SourceLocation("")).spec.replicas == replicas
    )


def test_check_says_the_same_and_follows_no_reference(tmp_path: Path) -> None:
    file = write(tmp_path, manifest(replicas=2))
    assert check_files([file]).problems == [f"{file}: line 6: {REPLICAS}"]
    file = write(tmp_path, manifest({"redis": SERVICE}, replicas=2))
    assert check_files([file]).problems == []


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


def test_a_url_that_is_missing_is_one_line(tmp_path: Path) -> None:
    file = write(tmp_path, manifest({"redis": URL}))
    assert loose_ends(file, LocalOptions()) == [
        (
            "spec.sessions.redis.urlFrom: key url of Secret redis is missing; "
            "set REDIS_URL, or give --secrets FILE"
        )
    ]


@pytest.mark.parametrize(
    ("name", "address", "url"),
    [
        pytest.param("redis", "redis://localhost:6379", "redis://localhost:6379", id="a URL"),
        pytest.param("redis", "rediss://r.example/2", "rediss://r.example/2", id="with TLS"),
        pytest.param("redis", "localhost:6379", "redis://localhost:6379", id="host and port"),
        pytest.param("redis", "[::1]:6379", "redis://[::1]:6379", id="an IPv6 address"),
        pytest.param("redis", "localhost", "redis://localhost", id="a host alone"),
        pytest.param("team/redis", "localhost:1", "redis://localhost:1", id="by namespace"),
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


def test_a_service_of_another_namespace_may_be_named_with_it(tmp_path: Path) -> None:
    sessions = {"redis": {"serviceRef": {"name": "redis", "namespace": "stores"}}}
    services = {"redis": "localhost:1", "stores/redis": "localhost:2"}
    store = loaded(write(tmp_path, manifest(sessions)), LocalOptions(services=services)).store
    assert store is not None
    assert store.url() == "redis://localhost:2"


@pytest.mark.parametrize(
    ("services", "lines"),
    [
        pytest.param(
            {},
            [
                (
                    "spec.sessions.redis.serviceRef: Service redis has no address here; "
                    "give --service redis=redis://localhost:6379"
                )
            ],
            id="none is given",
        ),
        pytest.param(
            {"redis": "http://localhost:6379"},
            [f"--service redis: {NO_ADDRESS}"],
            id="a URL of the web",
        ),
        pytest.param(
            {"redis": "localhost:65536"}, [f"--service redis: {NO_ADDRESS}"], id="no such port"
        ),
        pytest.param(
            {"redis": "redis://:sesame@localhost"},
            [
                (
                    "--service redis: must not hold a user or password; "
                    "use sessions.redis.urlFrom for that"
                )
            ],
            id="a password",
        ),
    ],
)
def test_an_address_that_is_none_is_one_line(
    tmp_path: Path, services: dict[str, str], lines: list[str]
) -> None:
    file = write(tmp_path, manifest({"redis": SERVICE}))
    assert loose_ends(file, LocalOptions(services=services)) == lines


def test_a_redis_is_no_tool_server(tmp_path: Path) -> None:
    file = write(tmp_path, manifest(tools=[{"name": "wiki", "serviceRef": {"name": "wiki"}}]))
    assert loose_ends(file, LocalOptions(services={"wiki": "redis://localhost"})) == [
        "spec.tools[0].serviceRef: Service wiki has no address here; give --service wiki=URL"
    ]


def test_a_mistake_elsewhere_hides_no_redis_of_the_command_line(tmp_path: Path) -> None:
    file = write(tmp_path, manifest({"redis": SERVICE}, budget={"tokens": 0}))
    options = LocalOptions(services={"redis": "redis://localhost:6379"})
    [line] = loose_ends(file, options)
    assert line.startswith("line 7: spec.budget.tokens: ")


def test_sessions_are_in_memory_unless_said_otherwise(tmp_path: Path) -> None:
    assert loaded(write(tmp_path, manifest()), LocalOptions()).store is None


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
        pytest.param({"name": "redis"}, "redis://redis.team:6379", id="of its namespace"),
        pytest.param(
            {"name": "redis", "namespace": "stores", "port": 7000},
            "redis://redis.stores:7000",
            id="of another namespace",
        ),
    ],
)
def test_a_service_is_found_by_its_name(tmp_path: Path, ref: dict[str, Any], url: str) -> None:
    config = in_a_pod(tmp_path, {"redis": {"serviceRef": ref}})
    assert config.store is not None
    assert config.store.url() == url
    assert config.mounted_keys == {}
