"""Requests to the Kubernetes API: read, list, apply, create, overwrite, replace, delete.

Requests are not retried here. Every reconcile can be repeated, and the work queue says when.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Self

import aiohttp
import orjson

from diptych_operator.kubernetes.connection import Connection
from diptych_operator.kubernetes.errors import (
    AlreadyExistsError,
    ApiError,
    InvalidError,
    UnavailableError,
    error_for,
)
from diptych_operator.resources.kinds import (
    EVENT,
    FIELD_MANAGER,
    OVERWRITE_MANAGER,
    SERVICE_ACCOUNT,
    Kind,
    NamespacedName,
    Object,
    ObjectKey,
    kind_of,
    namespaced_name_of,
)

_TIMEOUT = aiohttp.ClientTimeout(total=30, sock_connect=5)
_REACHABLE_SECONDS = 3.0
_APPLY = {"Content-Type": "application/apply-patch+yaml"}
_JSON = {"Content-Type": "application/json"}
_JSON_PATCH = {"Content-Type": "application/json-patch+json"}
_MAX_MESSAGE = 1000


class KubernetesClient:
    """The Kubernetes API; use it in `async with`. Every method may raise `ApiError`.

    `count_request` is told the method and the HTTP status (0 without an answer) of every request.
    """

    def __init__(self, connection: Connection, count_request: Callable[[str, int], None]) -> None:
        self._connection = connection
        self._count_request = count_request
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = self._connection.session()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def read(self, kind: Kind, name: NamespacedName) -> Object:
        return await self._request("GET", kind.path(*name))

    async def find(self, kind: Kind, name: NamespacedName) -> Object | None:
        """Read one object by a list request, for which the right to list and watch is enough."""
        query = {"fieldSelector": f"metadata.name={name[1]}"}
        answer = await self._request("GET", kind.path(name[0]), query=query)
        return next(iter(_items(kind, answer)), None)

    async def warnings(self, namespace: str, uid: str) -> list[Object]:
        """List the Warning Events about an object."""
        query = {"fieldSelector": f"regarding.uid={uid},type=Warning"}
        return _items(EVENT, await self._request("GET", EVENT.path(namespace), query=query))

    async def list(self, kind: Kind, namespace: str, selector: str) -> tuple[list[Object], int]:
        """Return the objects of a namespace (of all, if it is empty), and the list's version."""
        query = {"labelSelector": selector} if selector else None
        answer = await self._request("GET", kind.path(namespace), query=query)
        return _items(kind, answer), int(answer["metadata"]["resourceVersion"])

    async def apply(self, desired: Object, uid: str | None) -> Object:
        """Apply an object server-side; return the live object.

        With `uid`, only the object of that uid changes, and fields of other field managers are
        taken over. Without it, the object is created. If an object of the name says something
        else, nothing changes and `ConflictError` is raised.
        """
        if uid:
            desired = {**desired, "metadata": {**desired["metadata"], "uid": uid}}
        query = {"fieldManager": FIELD_MANAGER, "force": "true" if uid else "false"}
        path = kind_of(desired).path(*namespaced_name_of(desired))
        return await self._request("PATCH", path, desired, query, _APPLY)

    async def apply_status(self, key: ObjectKey, uid: str, status: Mapping[str, Any]) -> Object:
        """Apply the status of an object of ours; return the live object."""
        kind, namespace, name = key
        content = {
            "apiVersion": kind.api_version,
            "kind": kind.name,
            "metadata": {"name": name, "namespace": namespace, "uid": uid},
            "status": status,
        }
        path = f"{kind.path(namespace, name)}/status"
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        return await self._request("PATCH", path, content, query, _APPLY)

    async def document(self, path: str) -> Object:
        """Read a document that is no object, such as the keys of the cluster's issuer."""
        return await self._request("GET", path)

    async def create_token(self, account: NamespacedName, audience: str, seconds: int) -> str:
        """Have the API make a token of a ServiceAccount (TokenRequest)."""
        content = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"audiences": [audience], "expirationSeconds": seconds},
        }
        path = f"{SERVICE_ACCOUNT.path(*account)}/token"
        answer = await self._request("POST", path, content)
        token = (answer.get("status") or {}).get("token")
        if not isinstance(token, str):
            raise UnavailableError("the API's answer holds no token")
        return token

    async def create(self, content: Object) -> Object | None:
        """Create an object; None if there is one of this name, which stays as it is."""
        kind, (namespace, _) = kind_of(content), namespaced_name_of(content)
        query = {"fieldManager": FIELD_MANAGER}
        try:
            return await self._request("POST", kind.path(namespace), content, query)
        except AlreadyExistsError:
            return None

    async def annotate(self, live: Object, annotation: str, value: str) -> Object:
        """Set an annotation of an object that has some."""
        field = f"/metadata/annotations/{annotation.replace('/', '~1')}"
        patch = [
            {
                "op": "add",
                "path": "/metadata/uid",
                "value": live["metadata"]["uid"],
            },  # no other one
            {"op": "add", "path": field, "value": value},
        ]
        path = kind_of(live).path(*namespaced_name_of(live))
        query = {"fieldManager": FIELD_MANAGER}
        return await self._request("PATCH", path, patch, query, _JSON_PATCH)

    async def can_create(self, content: Object) -> bool:
        """Whether the API would accept an object if its name were free (a dry run)."""
        kind, (namespace, _) = kind_of(content), namespaced_name_of(content)
        try:
            await self._request("POST", kind.path(namespace), content, {"dryRun": "All"})
        except AlreadyExistsError:  # the API validates the object before it checks the name
            return True
        except InvalidError:
            return False
        return True

    async def overwrite(self, live: Object, desired: Object) -> Object:
        """Replace every field that `desired` has, if the object has not changed since `live`.

        Additions of others are lost, except labels and annotations. It is a JSON patch and not a
        PUT, which would need another right; the API server keeps what it has allocated.
        """
        patch = _overwriting_patch(live, desired)
        path = kind_of(desired).path(*namespaced_name_of(desired))
        query = {"fieldManager": OVERWRITE_MANAGER}
        return await self._request("PATCH", path, patch, query, _JSON_PATCH)

    async def replace(self, content: Object) -> Object:
        """Replace an object, if its `resourceVersion` is still the live one."""
        return await self._request(
            "PUT", kind_of(content).path(*namespaced_name_of(content)), content
        )

    async def delete(self, kind: Kind, name: NamespacedName, uid: str | None = None) -> None:
        """Delete an object (with `uid`: only that one). It is no error if it does not exist."""
        options: Object = {"propagationPolicy": "Background"}
        if uid:
            options["preconditions"] = {"uid": uid}
        try:
            await self._request("DELETE", kind.path(*name), options)
        except ApiError as error:
            if error.status not in {404, 409}:
                raise

    async def is_reachable(self) -> bool:
        """Whether the API answers within a few seconds, be it with an error."""
        try:
            async with asyncio.timeout(_REACHABLE_SECONDS):
                await self._request("GET", "/version")
        except (UnavailableError, TimeoutError):
            return False
        except ApiError:
            return True
        return True

    async def _request(
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
                self._count_request(method, response.status)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._count_request(method, 0)
            raise UnavailableError(f"the API does not answer: {type(error).__name__}") from error
        if response.status >= 400:  # noqa: PLR2004
            raise _error(response, body)
        return _object(body)


def _overwriting_patch(live: Object, desired: Object) -> list[Object]:
    fields: dict[str, object] = {
        f"/{field}": value
        for field, value in desired.items()
        if field not in {"apiVersion", "kind", "metadata"}
    }
    for field in ("labels", "annotations"):
        own = desired["metadata"].get(field) or {}
        fields[f"/metadata/{field}"] = {**(live["metadata"].get(field) or {}), **own}
    if owners := desired["metadata"].get("ownerReferences"):
        fields["/metadata/ownerReferences"] = owners
    fields["/metadata/resourceVersion"] = live["metadata"]["resourceVersion"]
    return [{"op": "add", "path": path, "value": value} for path, value in fields.items()]


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


def _error(response: aiohttp.ClientResponse, body: bytes) -> ApiError:
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError:
        content = {}
    status = content if isinstance(content, dict) else {}
    message = str(status.get("message") or f"the API answers {response.status}")[:_MAX_MESSAGE]
    retry_after = response.headers.get("Retry-After", "")
    seconds = float(retry_after) if retry_after.isdigit() else None
    return error_for(response.status, str(status.get("reason", "")), message, seconds)
