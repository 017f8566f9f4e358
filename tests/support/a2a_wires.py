"""The wires over which an agent speaks A2A: two bindings, in two versions.

A test marked `over_each_wire` takes its `wire`, and asks with the SDK's client over that one. For
0.3 that client is the SDK's of today; the older one is asked in `test_stack_clients`.
"""

from typing import TypeAlias

import httpx
import pytest
from a2a.client import A2ACardResolver, Client, ClientConfig, ClientFactory

Wire: TypeAlias = tuple[str, str]
"""A binding, and a version of the protocol, as an agent card names them."""

USUAL: Wire = ("JSONRPC", "1.0")
WIRES = [(binding, version) for version in ("1.0", "0.3") for binding in ("JSONRPC", "HTTP+JSON")]

over_each_wire = pytest.mark.parametrize("wire", WIRES, ids=" ".join)


async def client_over(
    wire: Wire, http: httpx.AsyncClient, url: str, *, streaming: bool = True
) -> Client:
    """Make a client that speaks over one wire, which the agent's card must name."""
    base = url if wire[1] == "1.0" else f"{url}/a2a/v0.3"
    card = await A2ACardResolver(http, base).get_agent_card()
    named = [
        i for i in card.supported_interfaces if (i.protocol_binding, i.protocol_version) == wire
    ]
    assert named, card
    del card.supported_interfaces[:]
    card.supported_interfaces.extend(named)
    config = ClientConfig(
        httpx_client=http, streaming=streaming, supported_protocol_bindings=[wire[0]]
    )
    return ClientFactory(config).create(card)
