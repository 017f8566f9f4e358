"""The parts of a manifest that say whom an agent may call: tool servers and other agents."""

import re
from typing import Annotated, Self

from pydantic import Field, model_validator

from diptych.config.manifest.field_types import (
    Duration,
    Few,
    HeaderName,
    HeaderValue,
    Label,
    Many,
    Some,
    Text,
    Url,
    Word,
)
from diptych.config.manifest.rules import Cel, Unique, broken_rule
from diptych.config.manifest.strict_model import SecretSource, Wire

_INK = r"[^\x00-\x20\x7f-\xa0]"


class ServiceRef(Wire):
    """A Service of the agent's namespace, and where on it the MCP server listens."""

    name: Label
    """Name of the Service."""
    port: Annotated[int, Field(ge=1, le=65535)] = 8000
    """A port of the Service."""
    path: Annotated[
        str,
        Field(max_length=1024, pattern=r"^/[!-~]*$"),
        Cel("self.matches('^/[!-~]*$')", 'must begin with "/" and hold no blanks'),
    ] = "/mcp"
    """The path of the MCP endpoint."""


class Header(Wire):
    """An HTTP header that every request to a tool server carries."""

    exactly_one_of = ("value", "valueFrom")

    name: HeaderName
    """The header's name, such as Authorization."""
    value: HeaderValue | None = None
    """Its value, if everybody may read it."""
    value_from: SecretSource | None = None
    """Where its value stands, if it is a secret."""


class Override(Wire):
    """What the manifest knows better of some tools than their server says."""

    tool: Word
    """Which tools of this server: a name or a glob such as `pay*`."""
    read_only: bool | None = None
    """It changes nothing, so it may be called again when its outcome is unknown."""
    idempotent: bool | None = None
    """Calling it twice has the effect of calling it once."""
    sequential: bool | None = None
    """It never runs beside another call of its server."""
    terminal: bool | None = None
    """After its result the agent answers, without thinking again."""
    timeout: Duration | None = None
    """How long one call may take."""


class ToolSpec(Wire):
    """An MCP server; exactly one of url, serviceRef and command says how to reach it."""

    exactly_one_of = ("url", "serviceRef", "command")
    cel = (
        Cel(
            "!has(self.command) || !has(self.headers) || size(self.headers) == 0",
            "a command has no headers",
        ),
        Cel(
            f"!has(self.command) || size(self.command) == 0 || self.command[0].matches(r'{_INK}')",
            "command must begin with the name of a program",
        ),
    )

    name: Label
    """What the server is called here; a tool's long name is `<name>__<tool>`."""
    url: Url | None = None
    """The server's MCP endpoint (streamable HTTP)."""
    service_ref: ServiceRef | None = None
    """The Service behind which the server runs."""
    command: Some[Text] | None = None
    """A program in the pod that speaks MCP over its standard input and output."""
    allow: Some[Word] = ("*",)
    """Which of its tools the agent may call: names or globs. All of them if absent."""
    headers: Annotated[
        Few[Header], Unique("headers", lambda h: h.name.lower(), "x.name.lowerAscii()")
    ] = ()
    """HTTP headers that every request to the server carries."""
    timeout: Duration = 60.0
    """How long one call may take."""
    overrides: Many[Override] = ()
    """Corrections of what the server says about its tools; the first that matches counts."""

    @model_validator(mode="after")
    def _one_way_to_reach_it(self) -> Self:
        if self.command is not None and self.headers:
            raise broken_rule("a command has no headers; remove them, or give a url")
        if self.command is not None and not re.search(_INK, self.command[0]):
            raise broken_rule("command must begin with the name of a program")
        return self


class PeerSpec(Wire):
    """An agent that this one may delegate to: an Agent of the cluster by name, or any by URL."""

    exactly_one_of = ("name", "url")
    cel = (
        Cel(
            "!has(self.url) || has(self.__as__)",
            'a url needs "as": the name that the model knows the agent by',
        ),
        Cel("!has(self.url) || !has(self.__namespace__)", "a url has no namespace"),
    )

    name: Label | None = None
    """Name of an Agent."""
    namespace: Label | None = None
    """The Agent's namespace, if it is another one; that Agent's allowedNamespaces must agree."""
    as_: Label | None = Field(default=None, alias="as")
    """What the model calls it; its name if absent."""
    url: Url | None = None
    """The base URL of any A2A agent."""
    share_context: bool | None = None
    """Whether it is sent the last messages of the conversation with its task. Absent: an Agent by
    name is, an agent by URL is not."""

    @model_validator(mode="after")
    def _named_or_by_url(self) -> Self:
        if self.url is not None and self.as_ is None:
            raise broken_rule('a url needs "as": the name that the model knows the agent by')
        if self.url is not None and self.namespace is not None:
            raise broken_rule("a url has no namespace; remove it, or give a name")
        return self

    @property
    def visible_name(self) -> str:
        return self.as_ or self.name or ""
