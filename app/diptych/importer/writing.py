"""Writes imported objects as YAML that people read: blocks of text, and comments in their place."""

from collections.abc import Sequence
from typing import Any

import yaml

from diptych.manifest.documents import FieldPath, resolve_scalar

_WIDTH = 100


class _Dumper(yaml.SafeDumper):
    """Quotes what `resolve_scalar` would read as something else than text."""

    def ignore_aliases(self, data: object) -> bool:
        del data
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    try:
        is_plain = resolve_scalar(text) == text
    except ValueError:
        is_plain = False
    is_shown = text.replace("\n", "").replace("\t", "").isprintable()
    style = '"' if not is_shown else "|" if "\n" in text else None if is_plain else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def document_text(content: dict[str, Any], comments: Sequence[tuple[FieldPath, str]] = ()) -> str:
    """Write an object, with each comment above the field that it belongs to."""
    text: str = yaml.dump(
        content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=_WIDTH
    )
    root = yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    lines = text.split("\n")
    above: dict[int, list[str]] = {}
    for path, comment in comments:
        number = _line(root, path)
        indent = lines[number][: len(lines[number]) - len(lines[number].lstrip())]
        above.setdefault(number, []).append(comment_line(comment, indent))
    written = (line for number, own in enumerate(lines) for line in (*above.get(number, ()), own))
    return "\n".join(written)


def _line(node: yaml.Node | None, path: FieldPath) -> int:
    """Return the line of a field's name; of the first field in a document's spec for that."""
    line = 0
    for part in path:
        if not isinstance(node, yaml.MappingNode):
            break
        key, node = next(
            ((key, value) for key, value in node.value if key.value == part), (node, node)
        )
        line = key.start_mark.line
    return node.start_mark.line if node and path == ("spec",) else line


def comment_line(text: str, indent: str = "") -> str:
    """Return a comment of one line."""
    return f"{indent}# {' '.join(text.split())}"
