"""`diptych pin`: asks an Agent's tool servers for their tools, and pins these in its file."""

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from diptych.cli.client.target import local_options
from diptych.cli.commands.options import Files, Secrets, Services, set_up_quiet_logging
from diptych.cli.exits import COMPLETED, FAILED
from diptych.core.errors import ConfigError

if TYPE_CHECKING:
    from diptych.cli.output.screen import Line
    from diptych.manifest.settings import ToolServerConfig

_NEW = ".pinned"  # the end of the name of a file that is being written


async def pin(files: Files, secrets: Secrets = None, service: Services = None) -> int:
    """Pin the tools of Agents in their files, as their servers list them now.

    From then on a tool whose name, description or schema has changed cannot be used. Look at the
    tools before you pin them. Pins of a server that does not answer stay as they are, and
    the exit code is 1.

    Example: `diptych pin agent.yaml`
    """
    from diptych.cli.output.screen import print_report
    from diptych.manifest import loader

    set_up_quiet_logging()
    loaded = loader.load_agents(files, local_options(secrets, service))
    found: dict[tuple[str, str], dict[str, dict[str, str]]] = {}
    is_ok = True
    urls = [f"http://{number}.agent.invalid" for number in range(len(loaded.names))]
    for config in loaded.resolve(urls):
        listed, reasons = await _listed(config.tools)
        found[config.namespace, config.name] = listed
        is_ok = is_ok and not reasons
        print_report([((config.name, "bold"),), *_report(config.tools, listed, reasons)])
    for file in files:
        _write(file, found)
    return COMPLETED if is_ok else FAILED


async def _listed(
    servers: "tuple[ToolServerConfig, ...]",
) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """Ask servers for their tools; returns the digests, and why the others gave none."""
    from diptych.mcp import McpTools
    from diptych.serve.examination import COMMAND_SECONDS, HTTP_SECONDS

    async with McpTools(servers) as tools:
        has_command = any(server.command for server in servers)
        await tools.wait_for_first_attempt(COMMAND_SECONDS if has_command else HTTP_SECONDS)
        reasons = {u.name: u.reason for u in tools.snapshot()[1] if u.kind == "server"}
        return tools.digests(), reasons


def _report(
    servers: "tuple[ToolServerConfig, ...]",
    listed: Mapping[str, Mapping[str, str]],
    reasons: Mapping[str, str],
) -> "Iterator[Line]":
    from diptych.cli.output.screen import Mark

    if not servers:
        yield "  ", Mark.NOTE.value, "it has no tool servers, and nothing to pin"
    for server in servers:
        if (tools := listed.get(server.name)) is not None:
            changes = "; ".join(_changes(server.pins, tools)) or "as before"
            yield "  ", Mark.OK.value, f"{server.name}: {len(tools)} tools, {changes}"
        else:
            reason = reasons.get(server.name, "did not answer")
            said = f"{server.name}: {reason}; its pins stay as they are"
            yield "  ", Mark.FAILED.value, said


def _changes(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    kinds = {
        "new": [tool for tool in new if tool not in old],
        "changed": [tool for tool in new if old.get(tool, new[tool]) != new[tool]],
        "gone": [tool for tool in old if tool not in new],
    }
    for kind, tools in kinds.items():
        if tools:
            yield f"{kind}: {', '.join(tools)}"


def _write(file: Path, pins: Mapping[tuple[str, str], Mapping[str, Mapping[str, str]]]) -> None:
    """Replace the file by one with the pins, in one step. Raises `ConfigError`."""
    from diptych.manifest.documents import read_text
    from diptych.manifest.pinning import check_written, with_pins

    before = read_text(file)
    after = with_pins(before, pins)
    if after == before:
        return
    check_written(file, before, after, pins)
    target = file.resolve()
    new = target.with_name(f".{target.name}{_NEW}")
    try:
        new.write_bytes(after.encode())
        shutil.copymode(target, new)
        new.replace(target)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise ConfigError(f"{file}: cannot be written: {error.strerror}") from error
