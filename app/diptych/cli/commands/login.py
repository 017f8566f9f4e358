"""`diptych login`: signs a person in to a tool server that wants a token of theirs."""

import asyncio
import json
import webbrowser
from typing import Annotated, Self
from urllib.parse import parse_qsl, urlsplit

import typer

from diptych.cli.client.target import connect_remote
from diptych.cli.cluster.kubectl import ClusterFlags
from diptych.cli.commands.options import DEFAULT_URL, At, Json
from diptych.cli.exits import COMPLETED
from diptych.core.errors import ConfigError

PORT = 8976  # fixed, so that clients can be registered for it
WAIT_SECONDS = 600.0
MAX_REQUEST_LINE = 16_384
_PAGE = "You can close this page, and go back to the terminal."


async def login(
    cluster: ClusterFlags,
    tool: Annotated[
        str | None, typer.Argument(metavar="TOOL", help="The tool server's name; all if absent.")
    ] = None,
    at: At = DEFAULT_URL,
    forget: Annotated[bool, typer.Option("--forget", help="Delete the token instead.")] = False,
    port: Annotated[
        int, typer.Option(help="The port of this machine to which the browser comes back.")
    ] = PORT,
    browser: Annotated[bool, typer.Option(help="Open the browser.")] = True,
    as_json: Json = False,
) -> int:
    """Sign in to a tool server of an agent, so that it can be used for you; or list them.

    The browser comes back to this machine, which hands the code on to the agent.

    Examples: `diptych login`, `diptych login crm --at team/helper`, `diptych login crm --forget`
    """
    async with connect_remote(at, cluster) as agent:
        if tool is None:
            for each in await agent.logins():
                state = "signed in" if each["signed_in"] else "not signed in"
                typer.echo(json.dumps(each) if as_json else f"{each['tool_server']}: {state}")
            return COMPLETED
        if forget:
            await agent.forget_login(tool)
            typer.echo(f"{tool}: signed out", err=True)
            return COMPLETED
        async with _Callback(port) as callback:
            begun = await agent.begin_login(tool, callback.url)
            if begun["url"]:
                typer.echo(f"sign in at {begun['url']}", err=True)
                if browser:
                    await asyncio.to_thread(webbrowser.open, begun["url"])
                await agent.finish_login(tool, await callback.wait())
    typer.echo(f"{tool}: signed in", err=True)
    return COMPLETED


class _Callback:
    """A server on loopback that takes one redirect of the browser."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._found: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/callback"

    async def __aenter__(self) -> Self:
        try:
            self._server = await asyncio.start_server(
                self._answer, "127.0.0.1", self._port, limit=MAX_REQUEST_LINE
            )
        except OSError as error:
            raise ConfigError(f"--port: {self._port} is in use; give another") from error
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def wait(self) -> dict[str, str]:
        """Return state, code and issuer. Raises `ConfigError`."""
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                found = await self._found
        except TimeoutError:
            raise ConfigError("nobody has signed in within 10 minutes") from None
        if "code" not in found:
            raise ConfigError(f"the authorization server says {found.get('error', 'nothing')!r}")
        return {name: found[name] for name in ("state", "code", "iss") if name in found}

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            line = (await reader.readline()).decode("ascii", "replace").split()
            target = urlsplit(line[1] if len(line) > 1 else "")
            is_callback = target.path == "/callback" and bool(target.query)
            if is_callback and not self._found.done():
                self._found.set_result(dict(parse_qsl(target.query)))
            status = "200 OK" if is_callback else "404 Not Found"
            head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nConnection: close\r\n"
            writer.write(f"{head}Content-Length: {len(_PAGE)}\r\n\r\n{_PAGE}".encode())
            await writer.drain()
        except (ValueError, OSError):  # no request line, or the browser has gone
            pass
        finally:
            writer.close()
