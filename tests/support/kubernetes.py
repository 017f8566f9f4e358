"""A double of the Kubernetes API in this process, with the behaviour that the operator relies on.

It lists, watches, creates, applies server-side (with field managers and conflicts), replaces and
deletes, and it deletes what a deleted owner owns. It is our own because tests intercept
every request and need a thousand Agents in seconds.

It runs no controllers and makes no pods: `settle` does what a Deployment's controller would.
"""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web
from support.api_server_rules import (
    KINDS,
    check_types,
    complete,
    discovery,
    parse_path,
    validate,
)
from support.server_side_apply import (
    MADE_BY_SERVER,
    ErrorResponse,
    Stored,
    after_edit,
    applied,
    copy,
)

from diptych_operator.resources.kinds import (
    DEPLOYMENT,
    EVENT,
    LEASE,
    Kind,
    NamespacedName,
    Object,
    namespaced_name_of,
)

KEPT_BY_SERVER = {"clusterIP", "clusterIPs"}
WRITES = {"POST", "PATCH", "PUT", "DELETE"}
OPENID_CONFIGURATION = "/.well-known/openid-configuration"
JWKS = "/openid/v1/jwks"
JSON_PATCH = "application/json-patch+json"


@dataclass
class KubernetesApi:
    """The API. `before` may raise `ErrorResponse` for a request; `after` sees each request."""

    before: Callable[[web.Request, Object], Any] = lambda request, content: None
    after: Callable[[web.Request], Any] = lambda request: None
    writes: list[tuple[str, str, int]] = field(default_factory=list)
    reads: int = 0
    mute: bool = False  # watches send nothing any more
    issuer: Object = field(default_factory=lambda: {"issuer": "https://cluster.example"})
    keys: Object = field(default_factory=lambda: {"keys": [{"kty": "EC", "kid": "1"}]})
    _objects: dict[Kind, dict[NamespacedName, Stored]] = field(
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
        content = copy(content)
        content = {"apiVersion": kind.api_version, "kind": kind.name, **content}
        found = self._objects[kind].get(namespaced_name_of(content))
        return self._store(kind, content, found, "Update:kubectl").content

    def edit(self, kind: Kind, name: NamespacedName, change: Callable[[Object], Any]) -> Object:
        """Change an object, as `kubectl edit` would."""
        found = self._objects[kind][name]
        content = copy(found.content)
        change(content)
        return self._store(kind, content, found, "Update:kubectl-edit").content

    def remove(self, kind: Kind, name: NamespacedName) -> None:
        """Delete an object and what has no other owner, as the garbage collector would."""
        found = self._objects[kind].pop(name)
        self._version += 1
        found.content["metadata"]["resourceVersion"] = str(self._version)
        self._tell(kind, found.content, None)
        uid = found.content["metadata"]["uid"]
        for other, objects in self._objects.items():
            for owned, stored in list(objects.items()):
                owners = stored.content["metadata"].get("ownerReferences", ())
                left = [owner for owner in owners if owner["uid"] != uid]
                if len(left) < len(owners) and not self._exists(left):
                    self.remove(other, owned)
                elif len(left) < len(owners):
                    self.edit(
                        other,
                        owned,
                        lambda c, left=left: c["metadata"].update(ownerReferences=left),
                    )

    def _exists(self, owners: list[Object]) -> bool:
        uids = {
            o.content["metadata"]["uid"] for among in self._objects.values() for o in among.values()
        }
        return any(owner["uid"] in uids for owner in owners)

    def get(self, kind: Kind, name: NamespacedName) -> Object | None:
        stored = self._objects[kind].get(name)
        return stored.content if stored else None

    def all(self, kind: Kind) -> list[Object]:
        return [stored.content for stored in self._objects[kind].values()]

    def settle(self, *, ready: bool = True) -> None:
        """Complete the rollout of every Deployment, with pods that are ready (or not)."""
        for name in list(self._objects[DEPLOYMENT]):
            self.edit(DEPLOYMENT, name, lambda d: d.update(status=_settled(d, ready)))

    def dump(self) -> list[Object]:
        """Give all objects but Events and Leases, without fields that differ from run to run."""
        kinds = [kind for kind in KINDS if kind not in (EVENT, LEASE)]
        found = [copy(stored.content) for kind in kinds for stored in self._objects[kind].values()]
        return sorted(map(_normalised, found), key=lambda o: (o["kind"], *namespaced_name_of(o)))

    def drop_watches(self) -> None:
        """Cut every open watch, and forget the events from which it could continue."""
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
        except ErrorResponse as error:
            status = {"kind": "Status", "message": str(error), "code": error.status}
            if error.status != 500:  # as the real one, whose errors inside have no reason
                status["reason"] = "AlreadyExists" if "already exists" in str(error) else "Other"
            answer = web.json_response(status, status=error.status, headers=error.headers)
        if (
            request.method in WRITES
            and not _is_dry(request)
            and not request.path.endswith("/token")
        ):
            self.writes.append((request.method, request.path, answer.status))
            self.after(request)
        else:
            self.reads += 1
        return answer

    async def _answer(self, request: web.Request, content: Object) -> web.StreamResponse:
        documents = {OPENID_CONFIGURATION: self.issuer, JWKS: self.keys}
        if (found := documents.get(request.path, discovery(request.path))) is not None:
            return _json(found)
        kind, name, subresource = parse_path(request.path)
        match request.method:
            case "GET" if request.query.get("watch") == "true":
                return await self._watch(request, kind, name[0])
            case "GET" if not name[1]:
                return _json(self._list(request, kind, name[0]))
            case "GET":
                return _json(self._existing(kind, name).content)
            case "POST" if subresource == "token":
                return _json({"status": {"token": f"{'/'.join(name)} for {_audience(content)}"}})
            case "POST":
                return _json(self._create(request, kind, name[0], content), 201)
            case "PATCH" if request.content_type == JSON_PATCH:
                return _json(self._patch(request, kind, name, content))
            case "PATCH":
                return _json(self._apply(request, kind, name, content, subresource))
            case "PUT":
                return _json(self._replace(request, kind, name, content))
            case _:
                return _json(self._delete(kind, name, content, is_dry=_is_dry(request)))

    def _existing(self, kind: Kind, name: NamespacedName) -> Stored:
        if (found := self._objects[kind].get(name)) is None:
            raise ErrorResponse(404, f'{kind.plural} "{name[1]}" not found')
        return found

    def _list(self, request: web.Request, kind: Kind, namespace: str) -> Object:
        chosen = _chooser(request, namespace)
        wanted = request.query.get("fieldSelector", "").removeprefix("metadata.name=")
        objects = self._objects[kind]
        if wanted.startswith("regarding.uid="):  # of Events
            uid = wanted.removeprefix("regarding.uid=").removesuffix(",type=Warning")
            about = [s for s in objects.values() if s.content["regarding"].get("uid") == uid]
            objects = {str(n): s for n, s in enumerate(about) if s.content["type"] == "Warning"}
            wanted = ""
        among = filter(None, [objects.get((namespace, wanted))]) if wanted else objects.values()
        items = [s.content for s in among if chosen(s.content)]
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

    def _create(self, request: web.Request, kind: Kind, namespace: str, content: Object) -> Object:
        content["metadata"].setdefault("namespace", namespace)
        validate(kind, content, None)
        if namespaced_name_of(content) in self._objects[kind]:
            raise ErrorResponse(
                409, f'{kind.plural} "{content["metadata"]["name"]}" already exists'
            )
        if _is_dry(request):
            return content
        return self._store(kind, content, None, _updater(request)).content

    def _replace(
        self, request: web.Request, kind: Kind, name: NamespacedName, content: Object
    ) -> Object:
        found = self._existing(kind, name)
        version = content["metadata"].get("resourceVersion")
        if version and version != found.content["metadata"]["resourceVersion"]:
            raise ErrorResponse(409, "the object has been modified")
        return self._store(kind, content, found, _updater(request)).content

    def _patch(self, request: web.Request, kind: Kind, name: NamespacedName, steps: Any) -> Object:
        """Apply a JSON patch; of its operations, only `add` to a mapping is supported."""
        content = copy(self._existing(kind, name).content)
        for step in steps:
            parts = step["path"].strip("/").split("/")
            *way, last = (part.replace("~1", "/") for part in parts)
            place = content
            for part in way:
                place = place[part]
            place[last] = step["value"]
        before = self._existing(kind, name).content.get("spec") or {}
        for kept in before.keys() & KEPT_BY_SERVER:
            content["spec"].setdefault(kept, before[kept])
        return self._replace(request, kind, name, content)

    def _delete(self, kind: Kind, name: NamespacedName, options: Object, *, is_dry: bool) -> Object:
        found = self._existing(kind, name)
        uid = (options.get("preconditions") or {}).get("uid")
        if uid and uid != found.content["metadata"]["uid"]:
            raise ErrorResponse(409, "Precondition failed: UID")
        if is_dry:
            return {"kind": "PartialObjectMetadata", "metadata": found.content["metadata"]}
        self.remove(kind, name)
        return {"kind": "Status", "status": "Success"}

    def _apply(
        self,
        request: web.Request,
        kind: Kind,
        name: NamespacedName,
        content: Object,
        subresource: str,
    ) -> Object:
        found = self._objects[kind].get(name)
        uid = content["metadata"].get("uid")
        if uid and (found is None or found.content["metadata"]["uid"] != uid):
            raise ErrorResponse(409, f"uid mismatch: {uid}")
        if subresource and found is None:
            raise ErrorResponse(404, f'{kind.plural} "{name[1]}" not found')
        check_types(kind, content)
        manager = f"Apply:{request.query['fieldManager']}"
        force = request.query.get("force") == "true"
        if subresource:
            manager += "/status"
            content = {"status": content["status"]}
        return self._store(kind, applied(found, content, manager, force=force), found, None).content

    # The store.

    def _store(
        self, kind: Kind, content: Object | Stored, found: Stored | None, manager: str | None
    ) -> Stored:
        """Store an object; with a manager, every changed field becomes that manager's."""
        stored = content if isinstance(content, Stored) else Stored(content)
        before = found.content if found else None
        if manager is not None:
            stored.owners = after_edit(found, stored.content, manager)
        complete(kind, stored, before, next(self._uids))
        validate(kind, stored.content, before)
        if before is not None and _without_versions(before) == _without_versions(stored.content):
            return found or stored
        self._version += 1
        stored.content["metadata"]["resourceVersion"] = str(self._version)
        self._objects[kind][namespaced_name_of(stored.content)] = stored
        self._tell(kind, before, stored.content)
        return stored

    def _tell(self, kind: Kind, before: Object | None, after: Object | None) -> None:
        self._events[kind].append((self._version, before, after))
        self._news.set()


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

    def chosen(content: Object) -> bool:
        metadata = content["metadata"]
        own = metadata.get("labels") or {}
        return (not namespace or metadata.get("namespace") == namespace) and all(
            own.get(key) == value for key, value in labels.items()
        )

    return chosen


def _is_dry(request: web.Request) -> bool:
    return "dryRun" in request.query


def _audience(request: Object) -> str:
    (audience,) = request["spec"]["audiences"]
    return str(audience)


def _updater(request: web.Request) -> str:
    return f"Update:{request.query.get('fieldManager', 'diptych')}"


def _settled(deployment: Object, ready: bool) -> Object:
    wanted = deployment["spec"]["replicas"]
    return {
        "observedGeneration": deployment["metadata"]["generation"],
        "replicas": wanted,
        "updatedReplicas": wanted,
        "availableReplicas": wanted if ready else 0,
        "readyReplicas": wanted if ready else 0,
    }


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


def _json(content: Object, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(content), status=status, content_type="application/json")
