"""The `MCPServer` manifest: a tool server, hosted or remote, for many Agents."""

import ast
import re
from typing import Annotated, Literal

from pydantic import Field

from diptych.manifest.cluster import (
    AllowedNamespaces,
    ImageName,
    PodTemplate,
    Quantity,
    Resources,
    Variable,
    VariablesFrom,
)
from diptych.manifest.fields import (
    Headers,
    LongList,
    LongText,
    NonEmptyList,
    ObjectName,
    OneLine,
    Port,
    ShortList,
    Text,
    Url,
)
from diptych.manifest.metadata import SharedManifest
from diptych.manifest.rules import Rule, StrictModel, UniqueNames, pattern
from diptych.manifest.settings import ALL_TOOLS
from diptych.manifest.tools import ONE_AUTHORIZATION, VISIBLE, Override, Path, Pins, ToolAuth


class RemoteServer(StrictModel):
    """A server that runs elsewhere."""

    rules = (ONE_AUTHORIZATION,)

    url: Url
    """Its MCP endpoint (streamable HTTP)."""
    headers: Headers = ()
    """HTTP headers that every request to the server carries."""
    auth: ToolAuth | None = None
    """How Agents get OAuth tokens for the server. An Agent's own comes before it."""


class ContainerImage(StrictModel):
    """An image whose server speaks MCP over streamable HTTP at config.port."""

    ref: ImageName
    """The image."""


class ServerSource(StrictModel):
    """The server's program, or its address: exactly one."""

    exactly_one_of = ("remote", "containerImage", "python", "command")
    rules = (
        Rule(
            "!has(self.packages) || has(self.python)",
            "packages belong to python; remove them, or give python",
            lambda spec: not spec.packages or spec.python is not None,
        ),
        Rule(
            f"!has(self.command) || self.command[0].matches(r'{VISIBLE}')",
            "command must begin with the name of a program",
            lambda spec: not spec.command or re.search(VISIBLE, spec.command[0]),
        ),
    )

    remote: RemoteServer | None = None
    """A server that runs elsewhere."""
    container_image: ContainerImage | None = None
    """An image that holds the server."""
    python: Annotated[LongText, Field(min_length=1)] | None = None
    """Python functions with types and docstrings; each public one of the file is a tool."""
    packages: ShortList[OneLine] = ()
    """Packages that the Python code imports; the image must have them."""
    command: NonEmptyList[Text] | None = None
    """A program of the image, with its arguments, that speaks MCP over standard input and
    output."""


class ConfigMapSource(StrictModel):
    """A ConfigMap, as files."""

    name: ObjectName
    """The ConfigMap's name."""


class SecretVolume(StrictModel):
    """A Secret, as files."""

    secret_name: ObjectName
    """The Secret's name."""


class EmptyDir(StrictModel):
    """A folder that lives as long as the pod."""

    size_limit: Quantity | None = None
    """The most that it may hold."""


class VolumeClaim(StrictModel):
    """A PersistentVolumeClaim."""

    claim_name: ObjectName
    """The claim's name."""


class StorageSource(StrictModel):
    """Exactly one kind of volume."""

    exactly_one_of = ("configMap", "secret", "emptyDir", "persistentVolumeClaim")

    config_map: ConfigMapSource | None = None
    """A ConfigMap, as files."""
    secret: SecretVolume | None = None
    """A Secret, as files."""
    empty_dir: EmptyDir | None = None
    """A folder that lives as long as the pod."""
    persistent_volume_claim: VolumeClaim | None = None
    """A PersistentVolumeClaim."""


class StorageMount(StrictModel):
    """A volume in the server's container."""

    path: Annotated[str, pattern("/[!-~]*", 'must begin with "/" and hold no blanks', 1024)]
    """The folder where it is mounted."""
    permissions: Literal["ReadOnly", "ReadWrite"] = "ReadOnly"
    """Whether the server may write there."""
    source: StorageSource
    """The volume."""


class ServerConfig(StrictModel):
    """The server's port, arguments, environment and volumes."""

    port: Port = 8000
    """The port that it listens at."""
    path: Path = "/mcp"
    """The path of its MCP endpoint."""
    arguments: LongList[Text] = ()
    """Arguments of the image's program."""
    env: Annotated[
        LongList[Variable], UniqueNames("variables", lambda variable: variable.name)
    ] = ()
    """Variables of the server's environment."""
    env_from: ShortList[VariablesFrom] = ()
    """Secrets and ConfigMaps whose keys become variables."""
    storage: ShortList[StorageMount] = ()
    """Volumes in the server's container."""


UserId = Annotated[int, Field(ge=1, le=2**31 - 1)]


class ServerSecurity(StrictModel):
    """The user of the server's process; all else is as Pod Security "restricted" wants it."""

    run_as_user: UserId | None = None
    """The user's number; the image's if absent."""
    run_as_group: UserId | None = None
    """The group's number."""
    fs_group: UserId | None = None
    """The group that volumes belong to."""
    read_only_root_filesystem: bool = True
    """Whether the server can write to its volumes only."""


class ServerRuntime(StrictModel):
    """How the server's pods run."""

    replicas: Annotated[int, Field(ge=0, le=100)] = 1
    """How many pods there are. A client's requests go to one of them."""
    resources: Resources | None = None
    """Requests and limits in place of the operator's defaults."""
    security: ServerSecurity = Field(default_factory=ServerSecurity)
    """The user of the server's process."""
    pod_template: PodTemplate | None = None
    """Overrides of the pods' template; they are merged last."""


class ServerTools(StrictModel):
    """Which tools there are, for all Agents that use the server. An Agent may narrow them."""

    allow: NonEmptyList[OneLine] = ALL_TOOLS
    """The tools that Agents may call: names or globs. All tools of the server if absent."""
    pin: Pins = ()
    """Tools that cannot be used when their name, description or schema has changed."""
    overrides: LongList[Override] = ()
    """Corrections of what the server says about its tools. An Agent's own come before them."""


class McpServerSpec(StrictModel):
    """A tool server."""

    rules = (
        Rule(
            "!has(self.source.remote) || !has(self.config) && !has(self.runtime)",
            "config and runtime are for a server that runs in the cluster, not for remote",
            lambda spec: (
                spec.source.remote is None or not {"config", "runtime"} & spec.model_fields_set
            ),
        ),
        Rule(
            "!has(self.config) || !has(self.config.arguments) || has(self.source.containerImage)",
            "config.arguments are for containerImage only; command has its own",
            lambda spec: not spec.config.arguments or spec.source.container_image is not None,
        ),
    )

    source: ServerSource
    """The server's program, or its address."""
    config: ServerConfig = Field(default_factory=ServerConfig)
    """The server's port, arguments, environment and volumes."""
    runtime: ServerRuntime = Field(default_factory=ServerRuntime)
    """How the server's pods run."""
    tools: ServerTools = Field(default_factory=ServerTools)
    """Which tools there are."""
    allowed_namespaces: AllowedNamespaces | None = None
    """The namespaces whose Agents may use it; its own namespace if absent."""


class McpServerManifest(SharedManifest):
    """A tool server (MCP), hosted or remote, which Agents refer to."""

    kind: Literal["MCPServer"]
    """The kind of the manifest."""
    spec: McpServerSpec
    """The server, its pods and its tools."""


def python_problem(code: str) -> str | None:
    """Return the first mistake of Python code, with its line and column there.

    Without running it, types of parameters are missed only where no decorator may add them.
    """
    try:
        tree = ast.parse(code)
    except SyntaxError as error:
        return f"line {error.lineno or 1}, column {error.offset or 1}: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:  # a null byte, or too deep
        return f"is no Python: {error or type(error).__name__}"
    for each in tree.body:
        if not isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if each.name.startswith("_") or each.decorator_list:
            continue
        for parameter in (*each.args.args, *each.args.kwonlyargs):
            if parameter.annotation is None:
                place = f"line {parameter.lineno}, column {parameter.col_offset + 1}"
                name = parameter.arg
                return f"{place}: {name} of {each.name} has no type; write {name}: str, or Any"
    return None
