"""`diptych login`: signs a person in to a tool server with `as: person`."""

import asyncio
import json
import webbrowser
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import typer

from diptych.cli.client.target import connect_remote
from diptych.cli.cluster.kubectl import ClusterFlags
from diptych.cli.commands.options import DEFAULT_URL, At, Json
from diptych.cli.exits import COMPLETED
from diptych.core.errors import ConfigError

PORT = 8976  # fixed, so that clients can be registered for it
WAIT_SECONDS = 600.0


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
        async with _callback(port) as (url, found):
            begun = await agent.begin_login(tool, url)
            if begun["url"]:
                typer.echo(f"sign in at {begun['url']}", err=True)
                if browser:
                    await asyncio.to_thread(webbrowser.open, begun["url"])
                await agent.finish_login(tool, await _code(found))
    typer.echo(f"{tool}: signed in", err=True)
    return COMPLETED


@asynccontextmanager
async def _callback(port: int) -> AsyncIterator[tuple[str, "asyncio.Future[dict[str, str]]"]]:
    """Serve the browser's way back on loopback; yields its URL, and the parameters to come."""
    from aiohttp import web  # slow to load

    found: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()

    async def take(request: web.Request) -> web.Response:
        if request.query and not found.done():
            found.set_result(dict(request.query))
        return web.Response(text="You can close this page, and go back to the terminal.")

    app = web.Application()
    app.router.add_get("/callback", take)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, "127.0.0.1", port).start()
        except OSError as error:
            raise ConfigError(f"--port: {port} is in use; use another") from error
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/callback", found
    finally:
        await runner.cleanup()


async def _code(found: "asyncio.Future[dict[str, str]]") -> dict[str, str]:
    """Return state, code and issuer. Raises `ConfigError`."""
    try:
        given = await asyncio.wait_for(found, WAIT_SECONDS)
    except TimeoutError:
        raise ConfigError("nobody has signed in within 10 minutes") from None
    if "code" not in given:
        raise ConfigError(f"the authorization server says {given.get('error', 'nothing')!r}")
    return {name: given[name] for name in ("state", "code", "iss") if name in given}
