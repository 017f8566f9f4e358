"""Follows the references of tool servers: to Services, MCPServers and Secrets."""

import sys
from collections.abc import Mapping
from typing import Any

from diptych.manifest.documents import FieldPath
from diptych.manifest.mcp_server import McpServerSpec, ServerTools
from diptych.manifest.references import UNRESOLVED, References, with_path
from diptych.manifest.rules import fields_of
from diptych.manifest.settings import OverrideConfig, ToolAuthConfig, ToolServerConfig
from diptych.manifest.shared import narrowed
from diptych.manifest.tools import ToolAuth, ToolServerRef, ToolServerSpec
from diptych.ports import ValueProvider

_PATH = "/mcp"


class ToolReferences(References):
    """Makes the configuration of tool servers.

    On a laptop each Agent starts the programs of the MCPServers that it refers to itself, as it
    does those of its own `command`.
    """

    def tool(self, path: FieldPath, tool: ToolServerSpec) -> ToolServerConfig:
        allow, pins, overrides = tool.allow, tool.pin, tool.overrides
        shared = None
        if tool.ref is None:
            source = self._own_source(path, tool)
        else:
            source, shared = self._shared_source((*path, "ref"), tool.ref)
        if shared:
            allow = narrowed(allow, shared.allow)
            pins, overrides = (*pins, *shared.pin), (*overrides, *shared.overrides)
        headers, auth = source.pop("headers", {}), source.pop("auth", None)
        return ToolServerConfig(
            name=tool.name,
            allow=allow,
            timeout=tool.timeout,
            overrides=tuple(OverrideConfig(**fields_of(each)) for each in overrides),
            pins={pin.tool: pin.digest for pin in pins},
            headers={**headers, **self.values((*path, "headers"), tool.headers)},
            auth=self._auth((*path, "auth"), tool.auth) or auth,
            **source,
        )

    def _own_source(self, path: FieldPath, tool: ToolServerSpec) -> dict[str, Any]:
        """Return the `ToolServerConfig` fields that say how to reach an Agent's own server."""
        ref = tool.service_ref
        plain = {
            variable.name: variable.value for variable in tool.env if variable.value is not None
        }
        return {
            "url": self.service_url((*path, "serviceRef"), ref) if ref else tool.url,
            "command": tool.command or (),
            "env": {**self.values((*path, "env"), tool.env), **plain},
        }

    def _shared_source(
        self, path: FieldPath, ref: ToolServerRef
    ) -> tuple[dict[str, Any], ServerTools | None]:
        """Return those fields for a shared MCPServer, and its rules about tools."""
        namespace = ref.namespace or self.namespace
        found = None if ref.is_foreign else self.targets.shared.servers.get((namespace, ref.name))
        if found:
            manifest, location = found
            references = ToolReferences(namespace, location, self.targets)
            source = references.server_source(ref.name, manifest.spec)
            self.problems += references.problems
            return source, manifest.spec.tools
        url = self.targets.web_url(f"{namespace}/{ref.name}", ref.name)
        is_invalid = ("MCPServer", namespace, ref.name) in self.targets.shared.invalid
        if url is None and (ref.is_foreign or not is_invalid):
            self.add_problem(
                path,
                f"there is no {ref.kind or 'MCPServer'} {ref.name} here (namespace "
                f"{namespace}); give --service {ref.name}=URL"
                + ("" if ref.is_foreign else ", or add its file"),
            )
        return {"url": with_path(url or UNRESOLVED, _PATH)}, None

    def server_source(self, name: str, spec: McpServerSpec) -> dict[str, Any]:
        """Return how an MCPServer is reached, as `_own_source` does."""
        path: FieldPath = ("spec", "source")
        source, config = spec.source, spec.config
        if remote := source.remote:
            headers = self.values((*path, "remote", "headers"), remote.headers)
            auth = self._auth((*path, "remote", "auth"), remote.auth)
            return {"url": remote.url, "headers": headers, "auth": auth}
        if url := self.targets.web_url(f"{self.namespace}/{name}", name):
            return {"url": with_path(url, config.path)}
        if source.container_image:
            self.add_problem(
                (*path, "containerImage"), f"needs a cluster; give --service {name}=URL"
            )
            return {"url": UNRESOLVED}
        env: Mapping[str, ValueProvider | str]
        env = self.variables(("spec", "config"), config.env, config.env_from)
        if source.python is None:
            return {"command": source.command or (), "env": env}
        inline = (sys.executable, "-m", "diptych.cli.inline_tools")
        return {"command": (*inline, source.python, *source.packages), "env": env}

    def _auth(self, path: FieldPath, auth: ToolAuth | None) -> ToolAuthConfig | None:
        if auth is None:
            return None
        secret, key = (
            self.key((*path, field), "Secret", source.secret_key_ref) if source else None
            for field, source in (
                ("clientSecret", auth.client_secret),
                ("privateKey", auth.private_key),
            )
        )
        return ToolAuthConfig(
            auth.as_ == "person", auth.client_id or "", secret, key, auth.scopes, auth.issuer
        )
