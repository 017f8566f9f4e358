"""`diptych import`: makes manifests of Diptych from those of KAOS and kagent."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diptych.cli.exits import COMPLETED, FAILED
from diptych.core.errors import ConfigError

if TYPE_CHECKING:
    from diptych.importer import Imported, Note

_STYLES = {"kept": "dim", "changed": "", "dropped": "yellow", "refused": "red"}


async def import_(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE", help="Files with objects of KAOS or kagent.")
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", metavar="DIR", help="A folder for the manifests, one for each file; else stdout."
        ),
    ] = None,
) -> int:
    """Make manifests of Diptych from those of KAOS and kagent.

    Agents, models and tool servers become Agents, ModelAPIs and MCPServers; name files that refer
    to each other together. A table on stderr says what became of each field. What has no equal is a
    comment in its place.

    The exit code is 1 if an object could not be made, and 2 if a file cannot be read.

    Example: `diptych import team.yaml -o manifests`
    """
    from diptych.cli.output.screen import Screen
    from diptych.importer import import_files

    imported = import_files(files)
    if output is None:
        typer.echo("---\n".join(filter(None, imported.texts.values())), nl=False)
    else:
        _write(output, imported)
    screen = Screen()
    for line, style in _table(imported.notes):
        screen.print_line((line, style))
    return COMPLETED if imported.is_whole else FAILED


def _write(folder: Path, imported: "Imported") -> None:
    """Write all files, or none if one of them is there already."""
    texts: dict[Path, str] = {}
    for source, text in imported.texts.items():
        path = folder / source.with_suffix(".yaml").name
        if path in texts or path.exists():
            raise ConfigError(f"{path}: is there already; choose another folder")
        texts[path] = text
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{error.filename}: cannot be written: {error.strerror}") from error


def _table(notes: Iterable["Note"]) -> Iterator[tuple[str, str]]:
    """Write a line for each field, under its object's name."""
    from diptych.manifest.documents import dotted_path

    rows = [
        (note.title, dotted_path(note.path) or "all of it", note.outcome.value, note.text)
        for note in notes
    ]
    width = min(max((len(path) for _, path, *_ in rows), default=0), 60)
    last = ""
    for title, path, outcome, text in rows:
        if title != last:
            yield title, "bold"
            last = title
        yield f"  {path:<{width}}  {outcome:<7}  {text}", _STYLES[outcome]
