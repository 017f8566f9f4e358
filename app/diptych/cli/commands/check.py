"""`diptych check`: is a manifest valid, as a cluster would say it."""

from pathlib import Path
from typing import Annotated

import typer

from diptych.errors import ConfigError


def check(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="Files with Agents.")],
) -> None:
    """Check manifests without running anything.

    Says `ok` for each Agent, or what is wrong, a line each. No secret is read and no reference
    is followed. The exit code is 2 if anything is wrong.
    """
    from diptych.config import loader
    from diptych.config.documents import read_documents

    if problems := loader.check(files):
        raise ConfigError(*problems)
    for file in files:
        for document in read_documents(file):
            if document.content["kind"] == "Agent":
                typer.echo(f"{file}: {document.content['metadata']['name']}: ok")
