"""An `MCPServer` as a typed value."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diptych_operator.resources.agent import key_refs_in
from diptych_operator.resources.kinds import MCP_SERVER, PORT
from diptych_operator.resources.owner import Owner


@dataclass(frozen=True, slots=True)
class McpServer(Owner):
    """A tool server as the API shows it: remote, or with pods of its own."""

    kind = MCP_SERVER
    app = "diptych-tools"
    component = "tools"
    suffixes = ("-tools",)
    audience_path = "mcpserver/"

    @property
    def ready_port(self) -> int | None:
        return self.port if self.runs_our_image else None

    @property
    def source(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.spec["source"]
        return found

    @property
    def config(self) -> Mapping[str, Any]:
        return self.spec.get("config") or {}

    @property
    def runtime(self) -> Mapping[str, Any]:
        return self.spec.get("runtime") or {}

    @property
    def tools(self) -> Mapping[str, Any]:
        return self.spec.get("tools") or {}

    @property
    def is_hosted(self) -> bool:
        return "remote" not in self.source

    @property
    def runs_our_image(self) -> bool:
        """Whether its pods run `diptych mcp-server`."""
        return "python" in self.source or "command" in self.source

    @property
    def replicas(self) -> int:
        return int(self.runtime.get("replicas", 1)) if self.is_hosted else 0

    @property
    def port(self) -> int:
        """The port that its pods listen at."""
        return int(self.config.get("port", PORT))

    @property
    def url(self) -> str:
        """The URL of its MCP endpoint."""
        if not self.is_hosted:
            return str(self.source["remote"]["url"])
        path = self.config.get("path", "/mcp")
        return f"http://{self.child_name}.{self.namespace}.svc:{PORT}{path}"

    @property
    def headers(self) -> Sequence[Mapping[str, Any]]:
        """The headers that requests to a remote server carry."""
        found: Sequence[Mapping[str, Any]] = (self.source.get("remote") or {}).get("headers") or ()
        return found

    @property
    def auth(self) -> Mapping[str, Any]:
        """How Agents get OAuth tokens for a remote server; empty if they need none."""
        return (self.source.get("remote") or {}).get("auth") or {}

    @property
    def has_secrets(self) -> bool:
        """Whether a header's value, or what its auth needs, is in a Secret of its namespace."""
        return bool(key_refs_in([self.headers, self.auth]))

    @property
    def needs_credentials(self) -> bool:
        """Whether it cannot be asked without credentials, which the operator does not have."""
        return self.has_secrets or bool(self.auth)

    @property
    def pins(self) -> Mapping[str, str]:
        """The digests of pinned tools."""
        return {pin["tool"]: pin["digest"] for pin in self.tools.get("pin") or ()}

    def drifted(self, digests: Mapping[str, str]) -> Iterator[str]:
        """Name the pinned tools that are not among these digests."""
        for tool, digest in self.pins.items():
            if tool not in digests:
                yield f"{tool} (gone)"
            elif digests[tool] != digest:
                yield tool
