"""`diptych check`: validates manifests by the rules that a cluster applies to them."""

from pathlib import Path
from typing import Annotated

import typer

from diptych.errors import ConfigError


def check(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="Files with Agents.")],
) -> None:
    """Check manifests without running anything.

    Prints `ok` for each Agent, or one line per error. No secret is read and no reference
    is followed. The exit code is 2 if anything is wrong.
    """
    from diptych.config import loader
    from diptych.config.documents import read_documents

    if problems := loader.check_files(files):
        raise ConfigError(*problems)
    for file in files:
        for document in read_documents(file):
            if document.content["kind"] == "Agent":
                typer.echo(f"{file}: {document.content['metadata']['name']}: ok")
