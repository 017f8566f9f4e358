"""Imports whole files: the objects of KAOS and kagent, and the ConfigMaps beside them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diptych.core.errors import ConfigError
from diptych.importer import kagent, kaos
from diptych.importer.translation import Note, Outcome, Refused, Source
from diptych.importer.writing import comment_line, document_text
from diptych.manifest.documents import Document, SourceLocation, read_documents
from diptych.manifest.loader import FileContents, checked

_COPIED = ("ConfigMap", "Namespace")
_PLATFORMS = dict.fromkeys(kaos.GROUPS, kaos) | dict.fromkeys(kagent.GROUPS, kagent)


@dataclass(slots=True)
class Imported:
    """The result: the text to write for each file, and a note for each field."""

    texts: dict[Path, str] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Whether every object could be made."""
        return all(note.outcome is not Outcome.REFUSED for note in self.notes)


def import_files(files: Sequence[Path]) -> Imported:
    """Translate the objects of files. Raises `ConfigError` with a line for each bad input."""
    problems: list[str] = []
    found: dict[Path, list[Source]] = {}
    for file in files:
        try:
            found[file] = [Source(document) for document in read_documents(file)]
        except ConfigError as error:
            problems += error.problems
    sources = [source for inner in found.values() for source in inner]
    if not problems and not any(source.group in _PLATFORMS for source in sources):
        names = ", ".join(map(str, files))
        raise ConfigError(f"{names}: there is no object of KAOS or kagent in it")
    imported = Imported()
    made: dict[tuple[str, ...], str] = {}
    for file, inner in found.items():
        texts = []
        for source in inner:
            try:
                text, notes = _import(source, sources, made)
            except Refused as refused:
                text, notes = _comment(source, str(refused)), [refused.note]
            except ConfigError as error:
                problems += error.problems
                continue
            texts.append(text)
            imported.notes += notes
        imported.texts[file] = "---\n".join(filter(None, texts))
    if problems:
        raise ConfigError(*problems)
    return imported


def _import(
    source: Source, sources: Sequence[Source], made: dict[tuple[str, ...], str]
) -> tuple[str, list[Note]]:
    """Return the text and the notes of an object."""
    platform = _PLATFORMS.get(source.group)
    if platform is None and source.kind in _COPIED:
        return document_text(source.document.content), [
            Note(source.title, (), Outcome.KEPT, "copied")
        ]
    translation = platform.translate(source, sources) if platform else None
    if translation is None:
        why = f"no kind here is like {source.kind}" if platform else "apply it from its own file"
        return _comment(source, why), [Note(source.title, (), Outcome.DROPPED, why)]
    content = translation.content
    _check(source, content)
    full_name = (content["kind"], *source.full_name)
    if other := made.get(full_name):
        raise Refused(source, ("metadata", "name"), f"{other} has become an object of this name")
    made[full_name] = source.title
    return document_text(content, translation.comments), translation.notes


def _check(source: Source, content: dict[str, Any]) -> None:
    """Refuse an object that `diptych check` would refuse."""
    contents = FileContents()
    contents.add(Path(), Document(SourceLocation(source.document.source), content))
    if problems := checked(contents).problems:
        raise Refused(source, (), "; ".join(problems))


def _comment(source: Source, why: str) -> str:
    return comment_line(f"{source.title}: {why}") + "\n"
