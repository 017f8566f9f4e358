"""`diptych check`: validates manifests as a cluster does; `--online` asks what they name."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diptych.cli.client.target import local_options
from diptych.cli.commands.options import (
    Files,
    Json,
    Secrets,
    Services,
    set_up_quiet_logging,
)
from diptych.cli.exits import COMPLETED, FAILED
from diptych.core.errors import ConfigError

if TYPE_CHECKING:
    from diptych.cli.output.findings import Sentence
    from diptych.manifest.loader import LoadedAgents
    from diptych.serve.examination import AgentFindings


async def check(
    files: Files,
    online: Annotated[
        bool,
        typer.Option("--online", help="Ask models, tool servers and agents, for a few tokens."),
    ] = False,
    as_json: Json = False,
    secrets: Secrets = None,
    service: Services = None,
) -> int:
    """Check manifests without running anything.

    Prints `ok` for each object, or one line per error. No secret is read and no reference
    is followed. The exit code is 2 if anything is wrong.

    With `--online` each Agent's model is asked what it takes, its tool servers for their tools, and
    other agents for their cards. It prints what works, and which fields would serve better; the
    exit code is 1 if something does not work.
    """
    from diptych.manifest import loader
    from diptych.models.scripted import script_problems

    if not online and (secrets or service):
        raise ConfigError("--secrets and --service go with --online; else no reference is followed")
    checked = loader.check_files(files)
    scripts = [problem for script in checked.scripts() for problem in script_problems(*script)]
    if problems := [*checked.problems, *scripts]:
        raise ConfigError(*problems)
    for note in checked.notes:
        typer.echo(f"note: {note}", err=True)
    if online:
        set_up_quiet_logging()
        loaded = loader.load_agents(files, local_options(secrets, service))
        return await _check_online(loaded, as_json=as_json)
    for warning in checked.unmatched_names():  # online each has its sentence
        typer.echo(f"warning: {warning}", err=True)
    for file, kind, name in checked.names:
        is_agent = kind == "Agent"
        if as_json:
            named = {"agent": name} if is_agent else {"kind": kind, "name": name}
            _print_json({"file": str(file), **named, "ok": True})
        else:
            typer.echo(f"{file}: {name if is_agent else f'{kind} {name}'}: ok")
    return COMPLETED


async def _check_online(loaded: "LoadedAgents", *, as_json: bool) -> int:
    from diptych.cli.output.findings import sentences
    from diptych.cli.output.screen import Mark, print_report
    from diptych.models.connection import open_http_session
    from diptych.serve.examination import Examiner

    urls = [f"http://{number}.agent.invalid" for number in range(len(loaded.names))]
    configs = loaded.resolve(urls)
    is_ok = True
    async with open_http_session() as session:
        examiner = Examiner(session, urls)
        for config, (manifest, location) in zip(configs, loaded.manifests, strict=True):
            found = await examiner.examine(config)
            said = list(sentences(found, manifest))
            works = all(mark is not Mark.FAILED for mark, _ in said)
            is_ok = is_ok and works
            source = location.source.removesuffix(f" ({config.name})")
            if as_json:
                _print_json(_view(source, found, said, is_ok=works))
            else:
                title = ((f"{source}: {config.name}", "bold"),)
                print_report([title, *(("  ", mark.value, text) for mark, text in said)])
        if not as_json:
            requests, tokens = examiner.requests, examiner.tokens
            typer.echo(f"models were sent {requests} requests, which took {tokens:,} tokens")
    return COMPLETED if is_ok else FAILED


def _view(
    source: str, found: "AgentFindings", said: "Sequence[Sentence]", *, is_ok: bool
) -> dict[str, Any]:
    """Return the sentences, and the findings behind them, for programs."""
    from dataclasses import asdict

    return {
        "file": source,
        "agent": found.name,
        "ok": is_ok,
        "sentences": [{"level": mark.name.lower(), "text": text.strip()} for mark, text in said],
        "models": [asdict(model) for model in found.models],
        "tools": [asdict(server) for server in found.servers],
        "agents": [asdict(peer) for peer in found.peers],
    }


def _print_json(value: dict[str, Any]) -> None:
    import orjson

    typer.echo(orjson.dumps(value).decode())
