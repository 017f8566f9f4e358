"""Pools as an operating system has them: `diptych pool` processes, their documents and tokens."""

import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from support.pods import PodProcess, all_ready
from support.redis_server import free_port

from diptych.manifest.pooled_agent import document_digest

NAMESPACE, POOL = "team", "house"
ISSUER = "https://cluster.example.com"
OPERATOR, WEB, ACCOUNT = "system/operator", f"{NAMESPACE}/web", f"{NAMESPACE}/{POOL}-pool"
POOL_AUDIENCE = f"diptych.dev/{NAMESPACE}/pool/{POOL}"
_REDIS = Path("secrets/redis/url")
_KEY = ec.generate_private_key(ec.SECP256R1())
_FOREIGN_KEY = ec.generate_private_key(ec.SECP256R1())


def write_redis(references: Path, url: str) -> None:
    """Mount the Secret with a Redis' URL."""
    file = references / _REDIS
    file.parent.mkdir(parents=True)
    file.write_text(url)


def audience(agent: str) -> str:
    return f"diptych.dev/{NAMESPACE}/{agent}"


def token(account: str, audience: str, *, is_forged: bool = False) -> str:
    """Make the token of a ServiceAccount, as the cluster does."""
    claims = {
        "iss": ISSUER,
        "aud": [audience],
        "exp": int(time.time()) + 6_000,  # the module makes some when it is imported
        "sub": "system:serviceaccount:" + account.replace("/", ":"),
    }
    return jwt.encode(claims, _FOREIGN_KEY if is_forged else _KEY, "ES256", headers={"kid": "one"})


def bearer(account: str, audience: str, **fields: Any) -> dict[str, str]:
    return {"Authorization": f"Bearer {token(account, audience, **fields)}"}


def access(of: str, *grants: Mapping[str, Any]) -> dict[str, Any]:
    """Write an access file; `of` is the audience of its tokens."""
    jwk = jwt.get_algorithm_by_name("ES256").to_jwk(_KEY.public_key())
    keys = [{**json.loads(jwk), "kid": "one"}]
    cluster = {"url": ISSUER, "audience": of, "jwks": {"keys": keys}, "isCluster": True}
    return {"issuers": [cluster], "grants": [grant(OPERATOR, "status"), *grants], "agents": []}


def grant(account: str, *may: str) -> dict[str, Any]:
    return {"to": [{"kind": "serviceaccount", "name": account}], "may": list(may)}


def document(  # noqa: PLR0913 - what differs between agents
    name: str,
    port: int = 0,
    generation: int = 1,
    *,
    says: str = "",
    may_ask: str = WEB,
    references: Path = Path("/nowhere"),
    **spec: Any,
) -> dict[str, Any]:
    """Write an agent's document; without a model it says what it should.

    With a Secret `redis` in `references` (`write_redis`) it keeps its sessions there.
    """
    if (references / _REDIS).exists():
        url = {"secretKeyRef": {"name": "redis", "key": "url"}}
        spec["sessions"] = {"redis": {"urlFrom": url}}
    if "model" not in spec:
        replies = json.dumps([says or f"I am {name}"])
        spec["container"] = {"env": [{"name": "DEBUG_MOCK_RESPONSES", "value": replies}]}
    content: dict[str, Any] = {
        "name": name,
        "port": port or free_port(),
        "generation": generation,
        "manifest": {
            "apiVersion": "diptych.dev/v1alpha1",
            "kind": "Agent",
            "metadata": {
                "name": name,
                "namespace": NAMESPACE,
                "annotations": {"diptych.dev/references": str(references)},
            },
            "spec": {"loop": {"answerMode": "direct"}, **spec},
        },
        "access": access(audience(name), grant(may_ask, "ask")),
    }
    return {**content, "digest": document_digest(content)}


def again(former: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    """Write the next document of an agent, at the same port."""
    number = fields.pop("generation", former["generation"] + 1)
    return document(former["name"], former["port"], number, **fields)


def changed(document: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    """Change a document; its generation grows, unless it is given."""
    content = {**document, "generation": document["generation"] + 1, **fields}
    return {**content, "digest": document_digest(content)}


class PoolProcess(PodProcess):
    """A pool's process; `http` talks to it as its operator and its callers do."""

    def __init__(self, name: str, folder: Path, http: aiohttp.ClientSession, **env: str) -> None:
        self.folder, self._http = folder / name, http
        own_access = folder / f"{name}-access.json"
        own_access.write_text(json.dumps(access(POOL_AUDIENCE)))
        (self.folder / "0").mkdir(parents=True)
        options = ("--host", "127.0.0.1", "--folder", str(self.folder), "--access", str(own_access))
        environ = {"DIPTYCH_POOL_NAME": POOL, "LOG_FORMAT": "json", **env}
        super().__init__(name, folder, environ, ("-m", "diptych", "pool", *options))

    def write(self, *documents: Mapping[str, Any], at: int = 0) -> None:
        """Write documents as the kubelet does the files of a ConfigMap."""
        (self.folder / str(at)).mkdir(exist_ok=True)
        for each in documents:
            path = self.folder / str(at) / f"{each['name']}.json"
            path.with_suffix(".new").write_text(json.dumps(each))
            path.with_suffix(".new").rename(path)

    async def manage(
        self,
        method: str,
        path: str = "",
        content: Any = None,
        account: str = OPERATOR,
        **about: Any,
    ) -> tuple[int, Any]:
        """Send a request of the operator; gives status and content."""
        headers = bearer(account, about.pop("audience", POOL_AUDIENCE), **about)
        url = f"{self.url}/pool/agents{path}"
        async with self._http.request(method, url, json=content, headers=headers) as reply:
            return reply.status, await reply.json()

    async def put(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Hand a document over, and wait until it has been tried; gives the agent's entry."""
        status, _ = await self.manage("PUT", f"/{document['name']}", document)
        assert status == 202
        while True:
            entry = await self.entry(document["name"])
            if entry and entry["state"] != "starting":
                return entry

    async def entry(self, name: str) -> dict[str, Any] | None:
        _, entries = await self.manage("GET")
        return next((entry for entry in entries if entry["name"] == name), None)


@asynccontextmanager
async def pools(folder: Path, *names: str, **environ: str) -> AsyncIterator[list[PoolProcess]]:
    """Make the processes of a pool; those that are started are ended with the block."""
    timeout = aiohttp.ClientTimeout(total=60)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as http:
        made = [PoolProcess(name, folder, http, **environ) for name in names]
        try:
            yield made
        except BaseException as error:
            for each in made:
                error.add_note(f"--- {each.name} logged:\n{each.tail()}")
            raise
        finally:
            for each in made:
                each.end()


@asynccontextmanager
async def pool(
    folder: Path, *documents: Mapping[str, Any], **environ: str
) -> AsyncIterator[PoolProcess]:
    """Serve a pool whose files are there at its start."""
    async with pools(folder, "pool", **environ) as [one]:
        one.write(*documents)
        one.start()
        await all_ready([one])
        yield one


async def ask(
    http: aiohttp.ClientSession,
    url: str,
    text: str = "hello",
    path: str = "/v1/chat/completions",
    headers: Mapping[str, str] | None = None,
    **fields: Any,
) -> tuple[int, Any]:
    """Ask for a chat; gives the status, and the answer's text or the error."""
    body = {"messages": [{"role": "user", "content": text}], **fields}
    async with http.post(url + path, json=body, headers=headers) as reply:
        content = await reply.json()
        if reply.status != 200:
            return reply.status, content
        return 200, content["choices"][0]["message"]["content"]
