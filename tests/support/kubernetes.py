"""A Kubernetes API in this process, true enough for an operator.

It lists, watches, creates, applies server-side (fields belong to managers, conflicts included),
replaces, deletes, and collects what a deleted owner leaves. kmock's emulator was tried first: it
has no server-side apply, no versions and no uids, and takes 56 ms for a patch among 1,000 objects.

It makes no pods: `settle` plays the part of the controllers.
"""

import asyncio
import concurrent.futures
import contextlib
import itertools
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias

import orjson
from aiohttp import web

from diptych_operator.kinds import (
    AGENT,
    BUDGET,
    CONFIG_MAP,
    DEPLOYMENT,
    EVENT,
    LEASE,
    NAMESPACE,
    NETWORK_POLICY,
    POD,
    SERVICE,
    SERVICE_ACCOUNT,
    Kind,
    Name,
    Object,
    name_of,
)
from diptych_operator.merge import KEYS

Path: TypeAlias = tuple[Any, ...]
KINDS = (
    *(AGENT, DEPLOYMENT, SERVICE, CONFIG_MAP, SERVICE_ACCOUNT, NETWORK_POLICY, BUDGET, POD),
    *(NAMESPACE, LEASE, EVENT),
)
MADE_BY_SERVER = {"uid", "resourceVersion", "generation", "creationTimestamp", "managedFields"}
WRITES = {"POST", "PATCH", "PUT", "DELETE"}
ATOMIC = {"selector", "nodeSelector"}
KEYED = {**KEYS, "conditions": "type"}


class Refused(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, sentence: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(sentence)
        self.status = status
        self.headers = headers or {}


@dataclass
class Stored:
    """An object, and which manager has set which of its fields."""

    content: Object
    owners: dict[Path, set[str]] = field(default_factory=dict)


@dataclass
class KubernetesApi:
    """The API. `before` may raise `Refused` for a request; `after` sees each that was served."""

    before: Callable[[web.Request, Object], Any] = lambda request, content: None
    after: Callable[[web.Request], Any] = lambda request: None
    writes: list[tuple[str, str, int]] = field(default_factory=list)
    reads: int = 0
    mute: bool = False  # watches send nothing any more
    _objects: dict[Kind, dict[Name, Stored]] = field(
        default_factory=lambda: {kind: {} for kind in KINDS}
    )
    _events: dict[Kind, list[tuple[int, Object | None, Object | None]]] = field(
        default_factory=lambda: {kind: [] for kind in KINDS}
    )
    _version: int = 100
    _uids: Iterator[int] = field(default_factory=itertools.count)
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    url: str = ""
    _runner: web.AppRunner | None = None
    _streams: set[web.StreamResponse] = field(default_factory=set)

    # What tests say.

    def put(self, kind: Kind, content: Object) -> Object:
        """Make or replace an object, as `kubectl replace` would."""
        content = _copy(content)
        content = {"apiVersion": kind.api_version, "kind": kind.name, **content}
        found = self._objects[kind].get(name_of(content))
        return self._store(kind, content, found, "kubectl").content

    def edit(self, kind: Kind, name: Name, change: Callable[[Object], Any]) -> Object:
        """Change an object, as `kubectl edit` would."""
        found = self._objects[kind][name]
        content = _copy(found.content)
        change(content)
        return self._store(kind, content, found, "kubectl-edit").content

    def remove(self, kind: Kind, name: Name) -> None:
        """Delete an object and what it owns."""
        found = self._objects[kind].pop(name)
        self._version += 1
        found.content["metadata"]["resourceVersion"] = str(self._version)
        self._tell(kind, found.content, None)
        uid = found.content["metadata"]["uid"]
        for other, objects in self._objects.items():
            for owned, stored in list(objects.items()):
                owners = stored.content["metadata"].get("ownerReferences", ())
                if any(owner["uid"] == uid for owner in owners):
                    self.remove(other, owned)

    def get(self, kind: Kind, name: Name) -> Object | None:
        stored = self._objects[kind].get(name)
        return stored.content if stored else None

    def all(self, kind: Kind) -> list[Object]:
        return [stored.content for stored in self._objects[kind].values()]

    def settle(self, *, ready: bool = True) -> None:
        """Let every Deployment's pods be of its newest revision, and ready (or not)."""
        for name in list(self._objects[DEPLOYMENT]):
            self.edit(DEPLOYMENT, name, lambda d: d.update(status=_settled(d, ready)))

    def dump(self) -> list[Object]:
        """Give everything but Events and Leases, without what differs from run to run."""
        kinds = [kind for kind in KINDS if kind not in (EVENT, LEASE)]
        found = [_copy(stored.content) for kind in kinds for stored in self._objects[kind].values()]
        return sorted(map(_normalised, found), key=lambda o: (o["kind"], *name_of(o)))

    def drop_watches(self) -> None:
        """Cut every watch that is open, and forget what they could go on with."""
        for events in self._events.values():
            events.clear()
        for stream in list(self._streams):
            if stream.prepared and stream._req is not None and stream._req.transport:
                stream._req.transport.abort()

    # The server.

    @contextlib.asynccontextmanager
    async def served(self) -> AsyncIterator["KubernetesApi"]:
        app = web.Application(client_max_size=4 << 20)
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        try:
            yield self
        finally:
            self._news.set()
            await self._runner.cleanup()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        content = orjson.loads(body) if body else {}
        try:
            pause = self.before(request, content)
            if asyncio.iscoroutine(pause):
                await pause
            answer = await self._answer(request, content)
        except Refused as error:
            status = {"kind": "Status", "message": str(error), "code": error.status}
            status["reason"] = "AlreadyExists" if "already exists" in str(error) else "Other"
            answer = web.json_response(status, status=error.status, headers=error.headers)
        if request.method in WRITES:
            self.writes.append((request.method, request.path, answer.status))
            self.after(request)
        else:
            self.reads += 1
        return answer

    async def _answer(self, request: web.Request, content: Object) -> web.StreamResponse:
        if (found := _discovery(request.path)) is not None:
            return _json(found)
        kind, name, subresource = _parsed(request.path)
        match request.method:
            case "GET" if request.query.get("watch") == "true":
                return await self._watch(request, kind, name[0])
            case "GET" if not name[1]:
                return _json(self._list(request, kind, name[0]))
            case "GET":
                return _json(self._existing(kind, name).content)
            case "POST":
                return _json(self._create(kind, name[0], content), 201)
            case "PATCH":
                return _json(self._apply(request, kind, name, content, subresource))
            case "PUT":
                return _json(self._replace(kind, name, content))
            case _:
                return _json(self._delete(kind, name, content))

    def _existing(self, kind: Kind, name: Name) -> Stored:
        if (found := self._objects[kind].get(name)) is None:
            raise Refused(404, f'{kind.plural} "{name[1]}" not found')
        return found

    def _list(self, request: web.Request, kind: Kind, namespace: str) -> Object:
        chosen = _chooser(request, namespace)
        items = [s.content for s in self._objects[kind].values() if chosen(s.content)]
        items = [{k: v for k, v in i.items() if k not in ("kind", "apiVersion")} for i in items]
        return {
            "kind": f"{kind.name}List",
            "apiVersion": kind.api_version,
            "metadata": {"resourceVersion": str(self._version)},
            "items": items,
        }

    async def _watch(self, request: web.Request, kind: Kind, namespace: str) -> web.StreamResponse:
        chosen, since = _chooser(request, namespace), int(request.query.get("resourceVersion", 0))
        stream = web.StreamResponse(headers={"Content-Type": "application/json"})
        await stream.prepare(request)
        self._streams.add(stream)
        events = self._events[kind]
        seen = 0
        try:
            while request.transport is not None and not request.transport.is_closing():
                while seen < len(events) and not self.mute:
                    version, before, after = events[seen]
                    seen += 1
                    if version > since and (event := _event(before, after, chosen)):
                        await stream.write(orjson.dumps(event) + b"\n")
                seen = min(seen, len(events))
                await self._news.wait()
                self._news = asyncio.Event() if self._news.is_set() else self._news
        except ConnectionError:
            pass
        finally:
            self._streams.discard(stream)
        return stream

    def _create(self, kind: Kind, namespace: str, content: Object) -> Object:
        content["metadata"].setdefault("namespace", namespace)
        if name_of(content) in self._objects[kind]:
            raise Refused(409, f'{kind.plural} "{content["metadata"]["name"]}" already exists')
        return self._store(kind, content, None, "diptych").content

    def _replace(self, kind: Kind, name: Name, content: Object) -> Object:
        found = self._existing(kind, name)
        version = content["metadata"].get("resourceVersion")
        if version and version != found.content["metadata"]["resourceVersion"]:
            raise Refused(409, "the object has been modified")
        return self._store(kind, content, found, "diptych").content

    def _delete(self, kind: Kind, name: Name, options: Object) -> Object:
        found = self._existing(kind, name)
        uid = (options.get("preconditions") or {}).get("uid")
        if uid and uid != found.content["metadata"]["uid"]:
            raise Refused(409, "Precondition failed: UID")
        self.remove(kind, name)
        return {"kind": "Status", "status": "Success"}

    def _apply(
        self, request: web.Request, kind: Kind, name: Name, content: Object, subresource: str
    ) -> Object:
        found = self._objects[kind].get(name)
        uid = content["metadata"].get("uid")
        if uid and (found is None or found.content["metadata"]["uid"] != uid):
            raise Refused(409, f"uid mismatch: {uid}")
        if subresource and found is None:
            raise Refused(404, f'{kind.plural} "{name[1]}" not found')
        manager, force = request.query["fieldManager"], request.query.get("force") == "true"
        if subresource:
            manager += "/status"
            content = {"status": content["status"]}
        return self._store(
            kind, _applied(found, content, manager, force=force), found, None
        ).content

    # The store.

    def _store(
        self, kind: Kind, content: Object | Stored, found: Stored | None, manager: str | None
    ) -> Stored:
        """Keep an object; with a manager, all that differs from before is that manager's."""
        stored = content if isinstance(content, Stored) else Stored(content)
        before = found.content if found else None
        if manager is not None:
            stored.owners = _after_edit(found, stored.content, manager)
        _complete(kind, stored, before, next(self._uids))
        if before is not None and _without_versions(before) == _without_versions(stored.content):
            return found or stored
        self._version += 1
        stored.content["metadata"]["resourceVersion"] = str(self._version)
        self._objects[kind][name_of(stored.content)] = stored
        self._tell(kind, before, stored.content)
        return stored

    def _tell(self, kind: Kind, before: Object | None, after: Object | None) -> None:
        self._events[kind].append((self._version, before, after))
        self._news.set()


class ApiInThread:
    """A `KubernetesApi` that is served from a thread with a loop of its own.

    For tests with kopf: when it ends, it cancels every task of its loop that is younger than it,
    and so those of a server beside it. What tests call is done in the server's loop.
    """

    def __init__(self) -> None:
        vars(self).update(api=KubernetesApi(), loop=asyncio.new_event_loop(), end=asyncio.Event())
        vars(self)["thread"] = threading.Thread(
            target=self.loop.run_until_complete, args=[self._run()]
        )

    def __getattr__(self, name: str) -> Any:
        value = getattr(vars(self)["api"], name)
        if not callable(value) or name in ("before", "after"):
            return value
        return lambda *given: self._in_loop(lambda: value(*given))

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.api, name, value)

    def __enter__(self) -> Self:
        self.thread.start()
        while not self.api.url:
            time.sleep(0.001)
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self.end.set)
        self.thread.join()
        self.loop.close()

    async def _run(self) -> None:
        async with self.api.served():
            await self.end.wait()

    def _in_loop(self, action: Callable[[], Any]) -> Any:
        done: concurrent.futures.Future[Any] = concurrent.futures.Future()

        def act() -> None:
            try:
                done.set_result(action())
            except Exception as error:  # noqa: BLE001 - it is the test's, and told there
                done.set_exception(error)

        self.loop.call_soon_threadsafe(act)
        return done.result(5)


def _event(before: Object | None, after: Object | None, chosen: Callable[[Object], bool]) -> Any:
    was, is_now = before is not None and chosen(before), after is not None and chosen(after)
    if not was and not is_now:
        return None
    kind = "ADDED" if not was else "MODIFIED" if is_now else "DELETED"
    return {"type": kind, "object": after if is_now else {**(before or {}), **_version_of(after)}}


def _version_of(after: Object | None) -> Object:
    return {} if after is None else {"metadata": after["metadata"]}


def _chooser(request: web.Request, namespace: str) -> Callable[[Object], bool]:
    selector = request.query.get("labelSelector", "")
    labels = dict(part.split("=", 1) for part in selector.split(",") if part)
    wanted = request.query.get("fieldSelector", "").removeprefix("metadata.name=")

    def chosen(content: Object) -> bool:
        metadata = content["metadata"]
        own = metadata.get("labels") or {}
        return (
            (not namespace or metadata.get("namespace") == namespace)
            and (not wanted or metadata["name"] == wanted)
            and all(own.get(key) == value for key, value in labels.items())
        )

    return chosen


def _parsed(path: str) -> tuple[Kind, Name, str]:
    parts = path.strip("/").split("/")
    group, version, rest = (
        ("", parts[1], parts[2:]) if parts[0] == "api" else (*parts[1:3], parts[3:])
    )
    namespace = ""
    if len(rest) > 2 and rest[0] == "namespaces":
        namespace, rest = rest[1], rest[2:]
    for kind in KINDS:
        if (kind.group, kind.version, kind.plural) == (group, version, rest[0]):
            name, subresource = [*rest[1:], "", ""][:2]
            return kind, (namespace, name), subresource
    raise Refused(404, "the server could not find the requested resource")


def _discovery(path: str) -> Object | None:
    groups = {(kind.group, kind.version) for kind in KINDS}
    match path.strip("/").split("/"):
        case ["version"]:
            return {"gitVersion": "v1.34.0"}
        case ["api"]:
            return {"versions": ["v1"]}
        case ["apis"]:
            return {
                "groups": [
                    {
                        "name": group,
                        "versions": [{"version": version, "groupVersion": f"{group}/{version}"}],
                        "preferredVersion": {"version": version},
                    }
                    for group, version in groups
                    if group
                ]
            }
        case ["api", version]:
            group = ""
        case ["apis", group, version]:
            pass
        case _:
            return None
    found = [kind for kind in KINDS if (kind.group, kind.version) == (group, version)]
    return {
        "groupVersion": f"{group}/{version}",
        "resources": [
            {
                "name": kind.plural,
                "kind": kind.name,
                "singularName": kind.name.lower(),
                "namespaced": kind.is_namespaced,
                "verbs": ["list", "watch", "patch", "get"],
            }
            for kind in found
        ],
    }


def _complete(kind: Kind, stored: Stored, before: Object | None, number: int) -> None:
    """Add what the server adds: uid, generation, defaults, the record of managers."""
    content = stored.content
    metadata = content["metadata"]
    old = (before or {}).get("metadata", {})
    metadata["uid"] = old.get("uid") or f"uid-{number}"
    metadata["creationTimestamp"] = "2026-11-21T12:00:00Z"
    metadata["resourceVersion"] = old.get("resourceVersion", "0")
    _add_defaults(kind, content)
    changed = before is None or before.get("spec") != content.get("spec")
    metadata["generation"] = old.get("generation", 0) + changed
    managers = {manager for owners in stored.owners.values() for manager in owners}
    metadata["managedFields"] = [
        {
            "manager": manager.removesuffix("/status"),
            "operation": "Apply" if manager.startswith("diptych") else "Update",
            "apiVersion": kind.api_version,
        }
        for manager in sorted(managers)
    ]


def _add_defaults(kind: Kind, content: Object) -> None:
    spec = content.get("spec") or {}
    if kind is SERVICE:
        spec.setdefault("clusterIP", "10.96.0.1")
        spec.setdefault("sessionAffinity", "None")
    if kind is DEPLOYMENT:
        pod = spec["template"]["spec"]
        pod.setdefault("restartPolicy", "Always")
        pod.setdefault("dnsPolicy", "ClusterFirst")
        for container in pod["containers"]:
            container.setdefault("terminationMessagePath", "/dev/termination-log")


def _settled(deployment: Object, ready: bool) -> Object:
    wanted = deployment["spec"]["replicas"]
    return {
        "observedGeneration": deployment["metadata"]["generation"],
        "replicas": wanted,
        "updatedReplicas": wanted,
        "availableReplicas": wanted if ready else 0,
        "readyReplicas": wanted if ready else 0,
    }


# Server-side apply.


def _leaves(value: Any, path: Path = (), name: str = "") -> Iterator[tuple[Path, Any]]:
    if isinstance(value, dict) and value and name not in ATOMIC:
        for key, inner in value.items():
            yield from _leaves(inner, (*path, key), key)
    elif isinstance(value, list) and _is_keyed(value, name):
        for entry in value:
            yield from _leaves(entry, (*path, (KEYED[name], entry[KEYED[name]])))
    else:
        yield path, value


def _is_keyed(value: list[Any], name: str) -> bool:
    key = KEYED.get(name)
    return bool(value) and key is not None and all(key in entry for entry in value)


def _fields(content: Object) -> dict[Path, Any]:
    return {
        path: value
        for path, value in _leaves(content)
        if path[0] not in ("apiVersion", "kind")
        and path[:2] not in {("metadata", "name"), ("metadata", "namespace")}
        and not (path[0] == "metadata" and path[1] in MADE_BY_SERVER)
    }


def _applied(found: Stored | None, content: Object, manager: str, *, force: bool) -> Stored:
    wanted = _fields(content)
    if found is None:
        return Stored(_copy(content), {path: {manager} for path in wanted})
    owners = {path: set(who) for path, who in found.owners.items()}
    live = _fields(found.content)
    for path, value in wanted.items():
        others = owners.get(path, set()) - {manager}
        if path in live and live[path] != value and others:
            if not force:
                raise Refused(409, f"Apply failed with a conflict with {', '.join(sorted(others))}")
            owners[path] = set()
        owners.setdefault(path, set()).add(manager)
    result = _copy(found.content)
    for path in [p for p, who in owners.items() if manager in who and p not in wanted]:
        owners[path].discard(manager)
        if not owners[path]:
            del owners[path]
            _delete_at(result, path)
    for path, value in wanted.items():
        _set_at(result, path, value)
    return Stored(result, owners)


def _after_edit(found: Stored | None, content: Object, manager: str) -> dict[Path, set[str]]:
    fields = _fields(content)
    if found is None:
        return {path: {manager} for path in fields}
    before = _fields(found.content)
    return {
        path: found.owners.get(path, {manager}) if before.get(path) == value else {manager}
        for path, value in fields.items()
    }


def _set_at(content: Any, path: Path, value: Any) -> None:
    for index, step in enumerate(path):
        last = index == len(path) - 1
        if isinstance(step, tuple):
            entry = next((e for e in content if e.get(step[0]) == step[1]), None)
            if entry is None:
                entry = {step[0]: step[1]}
                content.append(entry)
            content = entry
        elif last:
            content[step] = _copy(value)
        else:
            following = path[index + 1]
            if not isinstance(content.get(step), list if isinstance(following, tuple) else dict):
                content[step] = [] if isinstance(following, tuple) else {}
            content = content[step]


def _delete_at(content: Any, path: Path) -> None:
    parents = [content]
    for step in path[:-1]:
        if isinstance(step, tuple):
            content = next((e for e in content if e.get(step[0]) == step[1]), {})
        else:
            content = content.get(step, {})
        parents.append(content)
    if isinstance(path[-1], tuple):
        return
    parents[-1].pop(path[-1], None)
    for step, parent in zip(reversed(path[:-1]), reversed(parents[:-1]), strict=True):
        if isinstance(step, tuple):
            parent[:] = [e for e in parent if e.get(step[0]) != step[1] or len(e) > 1]
        elif not parent.get(step):
            parent.pop(step, None)


def _without_versions(content: Object) -> Object:
    ignored = {"resourceVersion", "managedFields", "generation"}
    metadata = {k: v for k, v in content["metadata"].items() if k not in ignored}
    return {**content, "metadata": metadata}


def _normalised(content: Object) -> Object:
    metadata = content["metadata"]
    for name in MADE_BY_SERVER - {"generation"}:
        metadata.pop(name, None)
    for owner in metadata.get("ownerReferences", ()):
        owner["uid"] = "…"
    (metadata.get("annotations") or {}).pop("diptych.dev/applied", None)
    for condition in (content.get("status") or {}).get("conditions", ()):
        condition["lastTransitionTime"] = "…"
    return content


def _copy(value: Any) -> Any:
    return orjson.loads(orjson.dumps(value))


def _json(content: Object, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(content), status=status, content_type="application/json")
