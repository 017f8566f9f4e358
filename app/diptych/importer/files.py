"""Imports whole files: the objects of KAOS and kagent, and the ConfigMaps beside them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diptych.core.errors import ConfigError
from diptych.importer import kagent, kaos
from diptych.importer.kagent_shared import GROUPS as KAGENT_GROUPS
from diptych.importer.translation import Note, Outcome, Refused, Source
from diptych.importer.writing import comment_lines, document_text
from diptych.manifest import MANIFESTS
from diptych.manifest.documents import FieldPath, SourceLocation, read_documents
from diptych.manifest.mcp_server import python_problem
from diptych.manifest.pod_spec import pod_spec_mistakes
from diptych.manifest.validation import validate_object

_COPIED = ("ConfigMap", "Namespace")
_PLATFORMS = dict.fromkeys(kaos.GROUPS, kaos) | dict.fromkeys(KAGENT_GROUPS, kagent)
_POD_TEMPLATES: tuple[FieldPath, ...] = (
    ("spec", "podTemplate", "spec"),
    ("spec", "runtime", "podTemplate", "spec"),
)


@dataclass(slots=True)
class Imported:
    """What became of files: the text to write for each, and a note for each field."""

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
    if platform is None or source.kind in platform.NO_EQUAL:
        why = platform.NO_EQUAL[source.kind] if platform else "apply it from its own file"
        return _comment(source, why), [Note(source.title, (), Outcome.DROPPED, why)]
    translations = platform.translate(source, sources)
    if not translations:
        return "", []
    content = translations[0].content
    _check(source, content)
    full_name = (content["kind"], *source.full_name[:1], content["metadata"]["name"])
    if other := made.get(full_name):
        raise Refused(source, ("metadata", "name"), f"{other} has become an object of this name")
    made[full_name] = source.title
    notes = [note for translation in translations for note in translation.notes]
    return document_text(content, translations[0].comments), notes


def _check(source: Source, content: dict[str, Any]) -> None:
    """Refuse an object that `diptych check` would refuse."""
    location = SourceLocation(source.document.source)
    try:
        validate_object(MANIFESTS[content["kind"]], content, location)
    except ConfigError as error:
        raise Refused(source, (), "; ".join(error.problems)) from None
    code = content["spec"].get("source", {}).get("python", "")
    if problem := python_problem(code):
        raise Refused(source, (), f"its Python: {problem}")
    for path in _POD_TEMPLATES:
        template: Any = content
        for part in path:
            template = template.get(part, {})
        for where, mistake in pod_spec_mistakes(template, path):
            raise Refused(source, (), f"{location.locate(where)}: {mistake}")


def _comment(source: Source, why: str) -> str:
    return "\n".join(comment_lines(f"{source.title}: {why}")) + "\n"
