"""`diptych check`: validates manifests as a cluster does; `--online` asks what they name."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

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
    from diptych.manifest.documents import SourceLocation
    from diptych.manifest.loader import LoadedAgents
    from diptych.manifest.settings import AgentConfig
    from diptych.models.probe import EndpointFindings
    from diptych.serve.examination import Examiner, PeerFindings, ToolServerFindings

    _Asked: TypeAlias = Sequence[EndpointFindings | ToolServerFindings | PeerFindings]


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

    Prints `ok` for each object, or one line per error. No secret is read, and
    what other objects of the files say of a reference is checked; one that is in none of them may
    be in the cluster. The exit code is 2 if anything is wrong.

    With `--online` each Agent's model is asked what it takes, its tool servers for their tools, and
    other agents for their cards; so are ModelAPIs and MCPServers. It prints what works, and which
    fields would serve better; the exit code is 1 if something does not work.
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
        options = local_options(secrets, service)
        loaded = loader.load_agents(files, options, needs_agent=False)
        return await _check_online(loaded, as_json=as_json)
    for warning in checked.unmatched_names():  # online each has its sentence
        typer.echo(f"warning: {warning}", err=True)
    for file, kind, name in checked.names:
        is_agent = kind == "Agent"
        if as_json:
            named = {"agent": name} if is_agent else _named(kind, name)
            _print_json({"file": str(file), **named, "ok": True})
        else:
            typer.echo(f"{file}: {name if is_agent else f'{kind} {name}'}: ok")
    return COMPLETED


async def _check_online(loaded: "LoadedAgents", *, as_json: bool) -> int:
    from diptych.cli.output.screen import Mark, print_report
    from diptych.models.connection import open_http_session
    from diptych.serve.examination import Examiner

    urls = [f"http://{number}.agent.invalid" for number in range(len(loaded.names))]
    configs = loaded.resolve(urls)
    is_ok = True
    async with open_http_session() as session:
        examiner = Examiner(session, urls)
        async for finding in _findings(loaded, configs, examiner):
            works = all(mark is not Mark.FAILED for mark, _ in finding.said)
            is_ok = is_ok and works
            if as_json:
                _print_json(finding.view(is_ok=works))
            else:
                title = ((f"{finding.source}: {finding.title}", "bold"),)
                print_report([title, *(("  ", mark.value, text) for mark, text in finding.said)])
        if not as_json:
            requests, tokens = examiner.requests, examiner.tokens
            typer.echo(f"models were sent {requests} requests, which took {tokens:,} tokens")
    return COMPLETED if is_ok else FAILED


@dataclass(frozen=True, slots=True)
class _Finding:
    """The findings about one object: sentences for people, and the rest for programs."""

    source: str
    kind: str
    name: str
    said: "Sequence[Sentence]"
    asked: "Mapping[str, _Asked]"

    @property
    def title(self) -> str:
        return self.name if self.kind == "Agent" else f"{self.kind} {self.name}"

    def view(self, *, is_ok: bool) -> dict[str, Any]:
        named = {"agent": self.name} if self.kind == "Agent" else _named(self.kind, self.name)
        said = [{"level": mark.name.lower(), "text": text.strip()} for mark, text in self.said]
        details = {field: list(map(asdict, found)) for field, found in self.asked.items()}
        return {"file": self.source, **named, "ok": is_ok, "sentences": said, **details}


async def _findings(
    loaded: "LoadedAgents",
    configs: "Sequence[AgentConfig]",
    examiner: "Examiner",
) -> AsyncIterator[_Finding]:
    from diptych.cli.output.findings import api_sentences, sentences, server_sentence
    from diptych.serve.examination import examine_server

    apis, servers = tuple(loaded.apis()), tuple(loaded.servers())  # raises before it asks

    def source(location: "SourceLocation", name: str) -> str:
        return location.source.removesuffix(f" ({name})")

    for api, location, model in apis:
        endpoint = await examiner.examine_api(model)
        name, said = api.metadata.name, list(api_sentences(endpoint, api.spec))
        yield _Finding(source(location, name), api.kind, name, said, {"models": [endpoint]})
    for server, location, tools in servers:
        found, _, _ = await examine_server(tools)
        name, said = server.metadata.name, [server_sentence(found)]
        yield _Finding(source(location, name), server.kind, name, said, {"tools": [found]})
    for config, (manifest, location) in zip(configs, loaded.manifests, strict=True):
        agent = await examiner.examine(config)
        said, name = list(sentences(agent, manifest)), config.name
        asked: Mapping[str, _Asked] = {
            "models": agent.models,
            "tools": agent.servers,
            "agents": agent.peers,
        }
        yield _Finding(source(location, name), "Agent", name, said, asked)


def _named(kind: str, name: str) -> dict[str, str]:
    return {"kind": kind, "name": name}


def _print_json(value: dict[str, Any]) -> None:
    import orjson

    typer.echo(orjson.dumps(value).decode())
