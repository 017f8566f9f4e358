"""JSON-RPC to other agents, lenient about their replies.

Several frameworks claim A2A 1.0 in their card but answer partly in 0.3's form, which the SDK
silently ignores; it is converted to 1.0 here.
"""

from typing import Any

import httpx
from a2a.client import ClientConfig, ClientFactory
from a2a.client.transports.base import ClientTransport
from a2a.client.transports.jsonrpc import JsonRpcTransport
from a2a.compat.v0_3.versions import is_legacy_version
from a2a.types import AgentCard

JSONRPC = "JSONRPC"
_FIELD_OF_KIND = {
    "task": "task",
    "message": "message",
    "status-update": "statusUpdate",
    "artifact-update": "artifactUpdate",
}


def client_factory(http: httpx.AsyncClient) -> ClientFactory:
    """Return a factory of JSON-RPC clients in the version that a card names."""
    factory = ClientFactory(ClientConfig(httpx_client=http, supported_protocol_bindings=[JSONRPC]))

    def transport(card: AgentCard, url: str, _: ClientConfig) -> ClientTransport:
        if _is_older(card, url):
            from diptych.a2a.older_transport import OlderTransport  # noqa: PLC0415 - heavy

            return OlderTransport(http, card, url, is_shared_httpx=True)
        return _NewerTransport(http, card, url, is_shared_httpx=True)

    factory.register(JSONRPC, transport)
    return factory


def _is_older(card: AgentCard, url: str) -> bool:
    """Whether an agent speaks only 0.x at this URL; a card without a version means 1.0."""
    versions = [
        interface.protocol_version
        for interface in card.supported_interfaces
        if interface.protocol_binding == JSONRPC and interface.url == url
    ]
    return all(is_legacy_version(version) for version in versions if version) and any(versions)


class _NewerTransport(JsonRpcTransport):
    def _check_jsonrpc_response(self, response_data: Any) -> dict[str, Any]:  # noqa: ANN401 - SDK's
        checked = super()._check_jsonrpc_response(response_data)
        return {**checked, "result": in_newer_form(checked["result"])}


def in_newer_form(result: Any) -> Any:  # noqa: ANN401 - whatever an agent sent
    """Convert a result to 1.0, dropping status times; may modify it in place. 0.3 results have a
    `kind`.
    """
    if not isinstance(result, dict):
        return result
    if (field := _FIELD_OF_KIND.get(str(result.get("kind")))) and field not in result:
        newer = _newer(result)
        # GetTask and CancelTask give a task as it is, all others in a field: so it is given twice.
        result = {**newer, field: newer} if field == "task" else {field: newer}
    for value in (result, result.get("task"), result.get("statusUpdate")):
        drop_time(value)
    return result


def drop_time(value: object) -> None:
    """Drop a status's time, which we never read: fasta2a's has no time zone, and the SDK would
    refuse the whole reply.
    """
    if isinstance(value, dict) and isinstance(status := value.get("status"), dict):
        status.pop("timestamp", None)


def _newer(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Convert 0.3's roles, states and file parts."""
    if isinstance(value, list):
        return [_newer(item) for item in value]
    if not isinstance(value, dict):
        return value
    if isinstance(file := value.get("file"), dict):
        return _newer_file(file)
    return {name: _newer_field(name, field) for name, field in value.items()}


def _newer_field(name: str, field: Any) -> Any:  # noqa: ANN401 - JSON
    match name, field:
        case "role", "user" | "agent":
            return f"ROLE_{field.upper()}"
        case "state", str() if field.islower():
            return "TASK_STATE_" + field.upper().replace("-", "_")
        case "data" | "metadata", _:  # the agent's own, also in its names
            return field
        case _:
            return _newer(field)


def _newer_file(file: dict[str, Any]) -> dict[str, Any]:
    names = {"bytes": "raw", "uri": "url", "name": "filename", "mimeType": "mediaType"}
    return {newer: file[older] for older, newer in names.items() if file.get(older) is not None}
