"""How the store is set up: a pod starts whatever is wrong with it, says what, and recovers."""

import asyncio
import subprocess
from pathlib import Path

import pytest
from support.redis_server import RedisServer, free_port, redis_server
from support.redis_stores import first, record, soon, stores

from diptych.core.errors import ConfigError, StoreError
from diptych.stores.redis import RedisSettings, RedisStore
from diptych.stores.redis.server import Unreachable, read_info
from diptych.stores.redis.settings import read_url

SECRET = "hunter2secret"


async def test_a_store_that_is_away_at_the_start_is_taken_up_when_it_comes(tmp_path):
    server = RedisServer(tmp_path)
    async with stores(server.url) as [store]:
        assert store.unavailable_reason() == "the store cannot be reached"
        with pytest.raises(StoreError, match="cannot be reached"):
            _ = store.epoch
        with pytest.raises(StoreError, match="cannot be reached"):
            await store.entries()
        server.start()
        try:
            await soon(lambda: store.unavailable_reason() == "")
            assert (await store.open(first(store), "t1")).lease
        finally:
            server.kill()


async def test_a_url_that_is_missing_wrong_or_changed_is_taken_up_when_it_is_right():
    url: list[str | None] = [None]
    with redis_server() as server, redis_server() as another:
        store = RedisStore(RedisSettings(lambda: url[0], "test"))
        await store.start()
        try:
            assert store.unavailable_reason() == "the store's URL is missing"
            url[0] = "http://store"
            await soon(lambda: "must start with redis://" in store.unavailable_reason())
            url[0] = server.url
            await soon(lambda: store.unavailable_reason() == "")
            epoch = store.epoch
            url[0] = another.url
            await soon(lambda: store.epoch != epoch)
            await soon(lambda: store.unavailable_reason() == "")
        finally:
            await store.aclose()


@pytest.mark.parametrize(
    "login", [pytest.param("", id="no password"), pytest.param(f":{SECRET}@", id="a wrong one")]
)
async def test_a_login_that_is_refused_is_named_without_the_password(login, caplog):
    with redis_server("--requirepass", "right") as server:
        async with stores(f"redis://{login}127.0.0.1:{server.port}") as [store]:
            assert "refuses the login" in store.unavailable_reason()
            with pytest.raises(StoreError) as refused:
                await store.entries()
            assert SECRET not in f"{store.unavailable_reason()} {refused.value} {caplog.text}"


async def test_a_redis_in_protected_mode_says_so_before_it_is_asked():
    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        del reader
        writer.write(b"-DENIED Redis is running in protected mode because ...\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(meet, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, stores(f"redis://127.0.0.1:{port}") as [store]:
        assert "protected mode" in store.unavailable_reason()


async def test_a_database_that_is_not_there_is_named():
    with redis_server() as server:
        async with stores(f"redis://127.0.0.1:{server.port}/99") as [store]:
            assert "no database with the number" in store.unavailable_reason()


async def test_settings_that_endanger_runs_are_noted():
    with redis_server("--maxmemory-policy", "allkeys-lru") as server:
        async with stores(server.url) as [store]:
            _, policy, saving = store.notes()
            assert "allkeys-lru" in policy
            assert "appendonly is off" in saving
    with redis_server("--appendonly", "yes") as server:
        async with stores(server.url) as [store]:
            assert len(store.notes()) == 1


@pytest.mark.parametrize(
    ("facts", "problem"),
    [
        pytest.param({}, "Redis of no version", id="nothing"),
        pytest.param({"redis_version": "6.2.14"}, "Redis 6.2.14; Redis 7 or newer", id="too old"),
        pytest.param(
            {"redis_version": "7.2.4", "loading": 1}, "still loading", id="one that loads"
        ),
        pytest.param(
            {"redis_version": "8.0", "role": "slave"}, "read-only replica", id="a replica"
        ),
    ],
)
def test_servers_that_cannot_serve_say_why(facts, problem):
    with pytest.raises(Unreachable, match=problem):
        read_info(facts)
    assert read_info({"redis_version": "10.1.0", "new_thing": "x"}) == ()


# Ways to connect


async def use(store: RedisStore) -> None:
    """Do what needs scripts, streams and pub/sub."""
    assert store.unavailable_reason() == ""
    opened = await store.open(first(store), "t1")
    await store.put_blob("abc", b"blob")
    await store.subscribe(opened.entry.run_id, lambda _: None)
    await store.append([record(opened.entry, 2, "completed")], opened.lease)
    await store.finish_run(opened.entry.run_id, (), opened.lease)
    assert len(await store.read(opened.entry.run_id)) == 2
    assert await store.unowned_sessions() == []
    assert await store.delete("talk")


async def test_a_user_with_few_rights_is_enough():
    with redis_server() as server:
        rules = "on >pass ~agent:* &agent:* +@read +@write +@scripting +@pubsub +@connection"
        server.ask("ACL", "SETUSER", "me", *rules.split(), "-@dangerous", "+info", "+time")
        url = f"redis://me:pass@127.0.0.1:{server.port}"
        async with stores(f"{url}/2", prefix="agent:a") as [store]:
            await use(store)
        async with stores(url, prefix="other:a") as [store]:
            assert "see its ACL rules" in store.unavailable_reason()
        for right in ("+publish", "+set", "+evalsha"):
            server.ask("ACL", "SETUSER", "me", f"-{right[1:]}")
            async with stores(url, prefix="agent:a") as [store]:
                assert "see its ACL rules" in store.unavailable_reason()
            server.ask("ACL", "SETUSER", "me", right)


async def test_a_redis_in_cluster_mode_is_named_at_once():
    with redis_server("--cluster-enabled", "yes", "--cluster-port", str(free_port())) as server:
        async with stores(server.url) as [store]:
            assert "cluster mode" in store.unavailable_reason()


async def test_a_unix_socket_serves(tmp_path):
    path = tmp_path / "redis.sock"
    with redis_server("--unixsocket", str(path)):
        async with stores(f"unix://{path}") as [store]:
            await use(store)


async def test_tls_is_spoken_with_who_has_the_right_certificate(tmp_path):
    key, certificate = made_certificate(tmp_path)
    port = free_port()
    files = ["--tls-key-file", str(key), "--tls-cert-file", str(certificate)]
    options = ["--tls-port", str(port), "--tls-auth-clients", "no", *files]
    with redis_server(*options, "--tls-ca-cert-file", str(certificate)):
        url = f"rediss://127.0.0.1:{port}"
        async with stores(f"{url}?ssl_ca_certs={certificate}") as [store]:
            await use(store)
        async with stores(url) as [store]:
            assert "TLS certificate is not trusted" in store.unavailable_reason()
        async with stores(f"{url}?ssl_ca_certs=/nowhere") as [store]:
            assert "cannot be reached" in store.unavailable_reason()


def made_certificate(folder: Path) -> tuple[Path, Path]:
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    request = (
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=localhost"
    )
    names = ["-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(["openssl", *request.split(), *names, *files], check=True, capture_output=True)
    return key, certificate


# URLs


def test_a_url_says_host_port_user_database_and_options():
    target = read_url("rediss://me:p%40ss@store.example:7000/3?ssl_check_hostname=false")
    assert target.server == {
        "host": "store.example",
        "port": 7000,
        "username": "me",
        "password": "p@ss",
        "db": 3,
        "ssl_check_hostname": False,
    }
    assert read_url("redis://").server == {"host": "localhost"}


def test_a_sentinel_url_says_sentinels_master_and_both_logins():
    target = read_url(
        "rediss+sentinel://me:pass@s1:7001,[::1]:7002,s3/my%20master/2"
        "?sentinel_password=other&ssl_ca_certs=/ca.pem"
    )
    tls = {"ssl_ca_certs": "/ca.pem"}
    assert target.master == "my master"
    assert target.server["db"] == 2
    assert (target.server["username"], target.server["password"]) == ("me", "pass")
    assert target.sentinels == (
        {"host": "s1", "port": 7001, "password": "other", **tls},
        {"host": "::1", "port": 7002, "password": "other", **tls},
        {"host": "s3", "port": 26379, "password": "other", **tls},
    )
    assert target.connection_class is read_url("rediss://x").connection_class


@pytest.mark.parametrize(
    ("url", "says"),
    [
        pytest.param("", "must start with", id="nothing"),
        pytest.param(f"http://:{SECRET}@store", "must start with", id="another scheme"),
        pytest.param(f"redis://:{SECRET}@store:port", "not valid", id="no number as port"),
        pytest.param(f"redis://:{SECRET}@store/name", "database number", id="no database"),
        pytest.param(f"redis://:{SECRET}@store?nope=1", "invalid option", id="an unknown option"),
        pytest.param(f"redis://:{SECRET}@store?db=x", "not valid", id="a wrong option"),
        pytest.param("unix://", "names no socket", id="no socket"),
        pytest.param(f"redis+sentinel://:{SECRET}@s1:7001", "must name", id="no master"),
        pytest.param(f"redis+sentinel://:{SECRET}@/master", "must name", id="no sentinel"),
        pytest.param("redis+sentinel://s1,,s3/master", "without a host", id="an empty sentinel"),
        pytest.param("redis+sentinel://s1/master/x", "database number", id="its database"),
    ],
)
def test_a_url_that_cannot_be_is_refused_without_showing_it(url, says):
    with pytest.raises(ConfigError, match=says) as refused:
        read_url(url)
    assert SECRET not in str(refused.value)
