"""The part of a manifest that says which tool servers (MCP) an agent uses."""

import re
from typing import Annotated, Literal, TypeAlias

from pydantic import (
    Field,
)

from diptych.core.catalog import RESERVED_SERVERS
from diptych.manifest.fields import (
    DnsLabel,
    Duration,
    Headers,
    LongList,
    LongText,
    NonEmptyList,
    ObjectName,
    OneLine,
    Port,
    SecretSource,
    ShortList,
    Text,
    Url,
    VariableName,
)
from diptych.manifest.rules import (
    Rule,
    StrictModel,
    UniqueNames,
    pattern,
)
from diptych.manifest.settings import ALL_TOOLS, CALL_TIMEOUT

OWN_SERVER = ("diptych.dev", "MCPServer")
VISIBLE = r"[^\x00-\x20\x7f-\xa0]"


Path: TypeAlias = Annotated[
    str,
    Field(max_length=1024, pattern=r"^/[!-~]*$"),
    Rule("self.matches('^/[!-~]*$')", 'must begin with "/" and hold no blanks'),
]


class ServiceRef(StrictModel):
    """A Service, and where on it the MCP server listens."""

    name: DnsLabel
    """The name of the Service."""
    namespace: DnsLabel | None = None
    """The Service's namespace; the agent's own if absent. One of another namespace must consent, by
    its annotation `diptych.dev/allowed-namespaces`."""
    port: Port = 8000
    """The Service's port."""
    path: Path = "/mcp"
    """The path of the MCP endpoint."""


class ToolServerRef(StrictModel):
    """An MCPServer, or an object of another group that has a server's address."""

    rules = (
        Rule(
            "has(self.apiGroup) == has(self.kind)",
            "apiGroup and kind belong together; leave both out for an MCPServer of diptych.dev",
            lambda spec: (spec.api_group is None) == (spec.kind is None),
        ),
    )

    name: ObjectName
    """The object's name."""
    namespace: DnsLabel | None = None
    """Its namespace, if it is another one. An MCPServer's allowedNamespaces must agree."""
    api_group: ObjectName | None = None
    """The API group of another kind, such as mcp.x-k8s.io; the platform says which may be read."""
    kind: Annotated[str, pattern("[A-Z][A-Za-z0-9]*", "must be the name of a kind", 63)] | None = (
        None
    )
    """Its kind, such as RemoteMCPServer. Its address is `status.address.url`, `status.url` or
    `spec.url`."""

    @property
    def is_foreign(self) -> bool:
        """Whether it is no MCPServer of ours."""
        return self.api_group is not None and (self.api_group, self.kind) != OWN_SERVER


class ToolVariable(StrictModel):
    """A variable of the environment of a tool server's command."""

    exactly_one_of = ("value", "valueFrom")

    name: VariableName
    """The variable's name."""
    value: LongText | None = None
    """The variable's value, if everybody may read it."""
    value_from: SecretSource | None = None
    """The Secret that holds the variable's value."""


Scope: TypeAlias = Annotated[
    str, pattern(r"[!#-[\]-~]+", "must be an OAuth scope: no blanks, quotes or backslashes", 256)
]


class ToolAuth(StrictModel):
    """How the agent gets OAuth tokens for an MCP server (MCP authorization)."""

    at_most_one_of = ("clientSecret", "privateKey")
    rules = (
        Rule(
            "has(self.as) && self.as == 'person'"
            " || has(self.clientId) && (has(self.clientSecret) || has(self.privateKey))",
            "needs clientId with clientSecret or privateKey, or `as: person`",
            lambda spec: (
                spec.as_ == "person"
                or (spec.client_id and (spec.client_secret or spec.private_key))
            ),
        ),
        Rule(
            "!has(self.clientSecret) && !has(self.privateKey)"
            " || has(self.clientId) && has(self.issuer)",
            "clientSecret and privateKey need clientId, and the issuer that may receive them",
            lambda spec: (
                not (spec.client_secret or spec.private_key) or (spec.client_id and spec.issuer)
            ),
        ),
        Rule(
            "!has(self.privateKey) || !has(self.as) || self.as == 'agent'",
            "privateKey is for `as: agent`; use clientSecret, or no secret",
            lambda spec: spec.private_key is None or spec.as_ == "agent",
        ),
    )

    as_: Literal["agent", "person"] = Field(default="agent", alias="as")
    """Whose token a call carries: the agent's own (client credentials), or that of the person who
    started the run and has signed in (authorization code with PKCE)."""
    client_id: OneLine | None = None
    """The client's id at the authorization server. Without it, `as: person` uses the agent's client
    id metadata document where the server takes one, else registers itself."""
    client_secret: SecretSource | None = None
    """The Secret that holds the client's secret."""
    private_key: SecretSource | None = None
    """The Secret that holds the client's private key (PEM; RSA, EC or Ed25519), which signs its
    requests for tokens (`private_key_jwt`)."""
    scopes: ShortList[Scope] = ()
    """The scopes to ask for; those that the server names if absent."""
    issuer: Url | None = None
    """The only authorization server that is trusted; one that the MCP server names if absent."""


class Pin(StrictModel):
    """A tool as it was when somebody looked at it."""

    tool: Annotated[
        str,
        pattern(
            r"[A-Za-z0-9_.-]{1,64}",
            'must be the name of a tool: 1 to 64 of A-Z, a-z, 0-9, ".", "-" and "_"',
            64,
        ),
    ]
    """The tool's name at its server."""
    digest: Annotated[
        str,
        pattern(
            "sha256:[0-9a-f]{64}",
            'must be "sha256:" and 64 hexadecimal digits; remove it and run `diptych pin FILE`',
            71,
        ),
    ]
    """The SHA-256 of the tool's name, description and schema, as `diptych pin` writes it."""


Pins: TypeAlias = Annotated[
    tuple[Pin, ...],
    Field(strict=False, max_length=256),
    UniqueNames("pinned tools", lambda pin: pin.tool, "tool"),
]


class Override(StrictModel):
    """What the manifest says about some tools in place of their server."""

    tool: OneLine
    """The tools of this server that are meant: a name, or a glob such as `pay*`."""
    read_only: bool | None = None
    """Whether the tool changes nothing. A call of such a tool may be made again when its outcome is
    unknown."""
    idempotent: bool | None = None
    """Whether two calls with the same arguments have the effect of one. A call of such a tool may
    be made again when its outcome is unknown."""
    sequential: bool | None = None
    """Whether a call of the tool never runs at the same time as another call of its server in the
    same run."""
    terminal: bool | None = None
    """Whether the agent answers right after the tool's result, without another step."""
    timeout: Duration | None = None
    """How long one call of the tool may take; the server's timeout if absent."""


ONE_AUTHORIZATION = Rule(
    "!has(self.auth) || !has(self.headers)"
    " || self.headers.all(x, x.name.lowerAscii() != 'authorization')",
    "needs only one of auth and a header Authorization",
    lambda spec: (
        spec.auth is None or all(header.name.lower() != "authorization" for header in spec.headers)
    ),
)


class ToolServerSpec(StrictModel):
    """An MCP server; exactly one of url, serviceRef, command and ref says how to reach it."""

    exactly_one_of = ("url", "serviceRef", "command", "ref")
    rules = (
        Rule(
            "!has(self.command) || !has(self.headers) || size(self.headers) == 0",
            "a command has no headers; remove them, or give a url",
            lambda spec: not (spec.command and spec.headers),
        ),
        Rule(
            "!has(self.command) || !has(self.auth)",
            "a command has no auth; remove it, or give a url",
            lambda spec: not (spec.command and spec.auth),
        ),
        ONE_AUTHORIZATION,
        Rule(
            "has(self.command) || !has(self.env) || size(self.env) == 0",
            "only a command has env; remove it, or give a command",
            lambda spec: spec.command or not spec.env,
        ),
        Rule(
            "!has(self.command) || size(self.command) == 0"
            f" || self.command[0].matches(r'{VISIBLE}')",
            "command must begin with the name of a program",
            lambda spec: not spec.command or re.search(VISIBLE, spec.command[0]),
        ),
    )

    name: Annotated[
        DnsLabel,
        Rule(
            f"!(self in {list(RESERVED_SERVERS)})",
            f"{' and '.join(RESERVED_SERVERS)} name the agent's own tool result__read and the "
            "tools of a chat's caller; use another name",
            lambda name: name not in RESERVED_SERVERS,
        ),
    ]
    """The server's name in this agent. It begins the long names of its tools: `<name>__<tool>`.
    `result` and `caller` are no names: the agent's own tool `result__read` and the tools of a
    chat's caller have them."""
    url: Url | None = None
    """The server's MCP endpoint (streamable HTTP)."""
    service_ref: ServiceRef | None = None
    """The Service behind which the server runs."""
    ref: ToolServerRef | None = None
    """The MCPServer. What its `tools` allow, pin and override holds here, too; the fields here can
    only narrow it."""
    command: NonEmptyList[Text] | None = None
    """A program in the pod, with its arguments, that speaks MCP over standard input and output."""
    env: Annotated[LongList[ToolVariable], UniqueNames("variables", lambda v: v.name)] = ()
    """Variables of the command. It gets these, PATH, HOME, LANG and TMPDIR, and nothing else."""
    allow: NonEmptyList[OneLine] = ALL_TOOLS
    """The tools that the agent may call: names or globs. All tools of the server if absent."""
    headers: Headers = ()
    """HTTP headers that every request to the server carries."""
    auth: ToolAuth | None = None
    """How the agent gets OAuth tokens for the server."""
    timeout: Duration = CALL_TIMEOUT
    """How long one call may take."""
    pin: Pins = ()
    """Tools that cannot be used when their name, description or schema has changed. Tools without a
    pin are not looked at; `allow` says which there may be. `diptych pin FILE` writes them."""
    overrides: LongList[Override] = ()
    """Corrections of what the server says about its tools. Of several that match a tool, the first
    that sets a field counts."""
