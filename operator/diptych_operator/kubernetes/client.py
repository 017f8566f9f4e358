"""The one adapter that talks to Kubernetes: apply, create, read, delete, patch a status.

Requests are not repeated here: every reconcile can be, and `due` says when. Not here: watching,
which is kopf's; what the objects say.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Self

import aiohttp
import orjson

from diptych_operator.controller.metrics import Metrics
from diptych_operator.kubernetes.connection import Connection
from diptych_operator.kubernetes.errors import (
    ClusterError,
    ExistsError,
    MissingError,
    RefusedError,
    UnavailableError,
    error_for,
)
from diptych_operator.resources.kinds import (
    AGENT,
    FIELD_MANAGER,
    MENDER,
    Kind,
    Name,
    Object,
    kind_of,
    name_of,
)

_TIMEOUT = aiohttp.ClientTimeout(total=30, sock_connect=5)
_SOON = 3.0
_APPLY = {"Content-Type": "application/apply-patch+yaml"}
_JSON = {"Content-Type": "application/json"}
_JSON_PATCH = {"Content-Type": "application/json-patch+json"}
_METADATA = {**_JSON, "Accept": "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"}
_MAX_SENTENCE = 1000


class Cluster:
    """The Kubernetes API; use it in `async with`. Every method raises `ClusterError`."""

    def __init__(self, connection: Connection, metrics: Metrics) -> None:
        self._connection = connection
        self._metrics = metrics
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = self._connection.session()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def read(self, kind: Kind, name: Name) -> Object:
        """Read one object."""
        return await self._ask("GET", kind.path(*name))

    async def find(self, kind: Kind, name: Name) -> Object | None:
        """Read one object by listing it, which needs no right besides that of watching."""
        query = {"fieldSelector": f"metadata.name={name[1]}"}
        answer = await self._ask("GET", kind.path(name[0]), query=query)
        return next(iter(_items(kind, answer)), None)

    async def list(self, kind: Kind, namespace: str, selector: str) -> tuple[list[Object], int]:
        """List objects (of all namespaces, if it is empty), and the version of the list."""
        query = {"labelSelector": selector} if selector else None
        answer = await self._ask("GET", kind.path(namespace), query=query)
        return _items(kind, answer), int(answer["metadata"]["resourceVersion"])

    async def apply(self, content: Object, uid: str | None) -> Object:
        """Apply an object server-side; give it as it is then.

        With `uid`, only the object of that uid is changed, and fields that somebody else has set
        are taken over. Without, it is to be made: if there is one already that says something
        else, nothing happens, and that is a `ConflictError`.
        """
        force = "true" if uid else "false"
        if uid:
            content = {**content, "metadata": {**content["metadata"], "uid": uid}}
        path = kind_of(content).path(*name_of(content))
        query = {"fieldManager": FIELD_MANAGER, "force": force}
        return await self._ask("PATCH", path, content, query, _APPLY)

    async def create(self, content: Object) -> bool:
        """Make an object; False if there is one of this name already, which is left as it is."""
        kind, (namespace, _) = kind_of(content), name_of(content)
        try:
            await self._ask("POST", kind.path(namespace), content, {"fieldManager": FIELD_MANAGER})
        except ExistsError:
            return False
        return True

    async def would_create(self, content: Object) -> bool:
        """Say whether the API would take an object, were its name free. Nothing is written."""
        kind, (namespace, _) = kind_of(content), name_of(content)
        try:
            await self._ask("POST", kind.path(namespace), content, {"dryRun": "All"})
        except ExistsError:  # it is checked before its name is
            return True
        except RefusedError:
            return False
        return True

    async def overwrite(self, found: Object, content: Object) -> Object:
        """Replace all that `content` says of an object, if it has not changed since it was found.

        What others have added goes, besides labels and annotations. It is a JSON patch, and not a
        PUT, as that would need another right; the API itself keeps what it has allocated.
        """
        metadata = found["metadata"]
        steps: dict[str, object] = {
            f"/{field}": value
            for field, value in content.items()
            if field not in {"apiVersion", "kind", "metadata"}
        }
        for field in ("labels", "annotations"):
            own = content["metadata"].get(field) or {}
            steps[f"/metadata/{field}"] = {**(metadata.get(field) or {}), **own}
        steps["/metadata/resourceVersion"] = metadata["resourceVersion"]
        patch = [{"op": "add", "path": path, "value": value} for path, value in steps.items()]
        path, query = kind_of(content).path(*name_of(content)), {"fieldManager": MENDER}
        return await self._ask("PATCH", path, patch, query, _JSON_PATCH)

    async def metadata_of(self, kind: Kind, name: Name) -> Object | None:
        """Give the metadata of an object that the operator may delete, but not read.

        It is what the API answers when it is asked to show a deletion without carrying it out.
        """
        query = {"dryRun": "All", "propagationPolicy": "Foreground"}
        try:
            answer = await self._ask("DELETE", kind.path(*name), None, query, _METADATA)
        except MissingError:
            return None
        if "uid" not in answer.get("metadata", {}):
            raise UnavailableError("the API does not show the object that would be deleted")
        return answer

    async def replace(self, content: Object) -> Object:
        """Replace an object, if it has not changed since it was read."""
        return await self._ask("PUT", kind_of(content).path(*name_of(content)), content)

    async def delete(self, kind: Kind, name: Name, uid: str | None = None) -> None:
        """Delete an object (only that of this uid); it is no error if it is not there."""
        options: Object = {"propagationPolicy": "Background"}
        if uid:
            options["preconditions"] = {"uid": uid}
        try:
            await self._ask("DELETE", kind.path(*name), options)
        except ClusterError as error:
            if error.status not in {404, 409}:
                raise

    async def write_status(self, name: Name, uid: str, status: Mapping[str, Any]) -> Object:
        """Write the status of an Agent; give the Agent as it is then."""
        namespace, agent = name
        content = {
            "apiVersion": AGENT.api_version,
            "kind": AGENT.name,
            "metadata": {"name": agent, "namespace": namespace, "uid": uid},
            "status": status,
        }
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        return await self._ask("PATCH", f"{AGENT.path(*name)}/status", content, query, _APPLY)

    async def answers(self) -> bool:
        """Say whether the API answers at all, and soon."""
        try:
            async with asyncio.timeout(_SOON):
                await self._ask("GET", "/version")
        except (UnavailableError, TimeoutError):
            return False
        except ClusterError:
            return True
        return True

    async def _ask(
        self,
        method: str,
        path: str,
        content: object = None,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] = _JSON,
    ) -> Object:
        if self._session is None:
            raise UnavailableError("the operator is not connected to the API yet")
        try:
            async with self._session.request(
                method,
                self._connection.server + path,
                data=orjson.dumps(content) if content is not None else None,
                params=query,
                headers=headers,
                timeout=_TIMEOUT,
            ) as response:
                body = await response.read()
                self._metrics.asked(method, response.status)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._metrics.asked(method, 0)
            raise UnavailableError(f"the API does not answer: {type(error).__name__}") from error
        if response.status >= 400:  # noqa: PLR2004
            raise _error(response, body)
        return _object(body)


def _items(kind: Kind, answer: Object) -> list[Object]:
    head = {"apiVersion": kind.api_version, "kind": kind.name}
    return [head | item for item in answer.get("items") or ()]


def _object(body: bytes) -> Object:
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise UnavailableError("the API's answer is not JSON") from error
    if not isinstance(content, dict):
        raise UnavailableError("the API's answer is not an object")
    return content


def _error(response: aiohttp.ClientResponse, body: bytes) -> ClusterError:
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError:
        content = {}
    told = content if isinstance(content, dict) else {}
    sentence = str(told.get("message") or f"the API answers {response.status}")[:_MAX_SENTENCE]
    after = response.headers.get("Retry-After", "")
    seconds = float(after) if after.isdigit() else None
    return error_for(response.status, str(told.get("reason", "")), sentence, seconds)
