# ruff: noqa: INP001 - MkDocs loads it as a hook
"""Hooks of `mkdocs.yml`: pages from outside of docs/, links to files, and the llms.txt files."""

import re
from pathlib import Path
from posixpath import dirname, join, normpath, relpath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "charts/diptych/README.md", "examples/README.md")
"""Pages of the site from outside of docs/, each at its own path."""

_LINK = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<target>(?!\w+:|#)[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")
_read: dict[str, str] = {}
_order: list[Page] = []


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of `PAGES`."""
    for page in PAGES:
        files.append(File.generated(config, page, content=(ROOT / page).read_text("utf-8")))
    return files


def on_nav(nav: Navigation, **_: object) -> None:
    """Note the order of the pages."""
    _order[:] = nav.pages


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links to files outside of docs/ at their page, or else at the repository."""
    own = page.file.src_uri
    source = own if own in PAGES else f"docs/{own}"

    def target(found: re.Match[str]) -> str:
        path = normpath(join(dirname(source), found["target"]))
        inside = path.removeprefix("docs/")
        if (inside != path or path in PAGES) and files.get_file_from_path(inside):
            link = relpath(inside, dirname(own) or ".")
            return f"[{found['text']}]({link}{found['anchor'] or ''})"
        if not (ROOT / path).exists():
            return found[0]  # MkDocs reports it
        if config.repo_url:
            return f"[{found['text']}]({config.repo_url}/blob/main/{path})"
        return found["text"]

    text = _LINK.sub(target, markdown)
    _read[own] = text
    return text


def on_post_build(config: MkDocsConfig) -> None:
    """Write the site's index for language models, and its whole text."""
    site, base = Path(config.site_dir), f"{(config.site_url or '').rstrip('/')}/".lstrip("/")
    index = [f"# {config.site_name}\n", f"> {config.site_description}\n"]
    whole = []
    for page in _order:
        text = _read[page.file.src_uri]
        copy = site / page.file.src_uri
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(text, "utf-8")
        index.append(f"- [{page.title}]({base}{page.file.src_uri}): {_summary(page, text)}")
        whole.append(f"<!-- {page.file.src_uri} -->\n\n{text.strip()}\n")
    (site / "llms.txt").write_text("\n".join(index) + "\n", "utf-8")
    (site / "llms-full.txt").write_text("\n".join(whole), "utf-8")


def _summary(page: Page, text: str) -> str:
    """Return the first sentence below a page's title, without links."""
    paragraphs: list[Any] = [each for each in text.split("\n\n") if each[:1] not in "#<|`![ "]
    first = " ".join(paragraphs[0].split()) if paragraphs else str(page.title)
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", re.split(r"(?<=[.:]) ", first)[0])
