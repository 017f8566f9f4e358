"""`diptych pin`: asks an Agent's tool servers for their tools, and pins these in its file."""

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diptych.cli.commands.options import Secrets, Services
from diptych.core.errors import ConfigError

if TYPE_CHECKING:
    from diptych.cli.output.findings import Sentence
    from diptych.manifest.loader import LoadedAgents
    from diptych.manifest.settings import ToolServerConfig

_NEW = ".pinned"  # what the name of a file that is being written ends with


def pin(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="Files with Agents.")],
    secrets: Secrets = None,
    service: Services = None,
) -> None:
    """Pin the tools of Agents in their files, as their servers list them now.

    From then on a tool whose name, description or schema has changed cannot be used. Look at what
    the tools are before you pin them. Pins of a server that does not answer stay as they are, and
    the exit code is 1.

    Example: `diptych pin agent.yaml`
    """
    from diptych.cli.environment import local_options, set_up_quiet_logging
    from diptych.cli.exits import run_interruptible
    from diptych.manifest import loader

    set_up_quiet_logging()
    loaded = loader.load_agents(files, local_options(secrets, service))
    raise typer.Exit(run_interruptible(_pin(files, loaded)))


async def _pin(files: list[Path], loaded: "LoadedAgents") -> int:
    from diptych.cli.exit_codes import COMPLETED, FAILED
    from diptych.cli.output.report import print_report

    found: dict[tuple[str, str], dict[str, dict[str, str]]] = {}
    is_ok = True
    urls = [f"http://{number}.agent.invalid" for number in range(len(loaded.names))]
    for config in loaded.resolve(urls):
        listed, reasons = await _listed(config.tools)
        found[config.namespace, config.name] = listed
        is_ok = is_ok and not reasons
        said = list(_sentences(config.tools, listed, reasons))
        print_report([((config.name, "bold"),), *(("  ", s.mark.value, s.text) for s in said)])
    for file in files:
        _write(file, found)
    return COMPLETED if is_ok else FAILED


async def _listed(
    servers: "tuple[ToolServerConfig, ...]",
) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """Ask servers for their tools; give the digests, and for each of the others why not."""
    from diptych.mcp import McpTools
    from diptych.serve.examination import COMMAND_SECONDS, HTTP_SECONDS

    async with McpTools(servers) as tools:
        has_command = any(server.command for server in servers)
        await tools.wait_for_first_attempt(COMMAND_SECONDS if has_command else HTTP_SECONDS)
        reasons = {u.name: u.reason for u in tools.snapshot()[1] if u.kind == "server"}
        return tools.digests(), reasons


def _sentences(
    servers: "tuple[ToolServerConfig, ...]",
    listed: Mapping[str, Mapping[str, str]],
    reasons: Mapping[str, str],
) -> "Iterator[Sentence]":
    from diptych.cli.output.findings import Sentence
    from diptych.cli.output.marks import Mark

    if not servers:
        yield Sentence(Mark.NOTE, "it has no tool servers, and nothing to pin")
    for server in servers:
        if server.name in listed:
            changes = "; ".join(_changes(server.pins, listed[server.name])) or "as before"
            yield Sentence(Mark.OK, f"{server.name}: {len(listed[server.name])} tools, {changes}")
        else:
            reason = reasons.get(server.name, "did not answer")
            yield Sentence(Mark.FAILED, f"{server.name}: {reason}; its pins stay as they are")


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
    """Write the file anew, at once. Raises `ConfigError`."""
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
