"""What code, tests and documents cite can be opened: pages, sections, headings and fault ids.

The forms of citations are those of `docs/spec/README.md`.
"""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
SPEC = {page.name: page.read_text() for page in (ROOT / "docs" / "spec").glob("*.md")}
READ = [
    path
    for folder in ("app", "operator", "tests", "e2e", "bench", "charts", "crds", "docs", "tools")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in {".py", ".md", ".lua", ".yaml", ".toml", ".sh"} and path != Path(__file__)
]
TEXTS = [(path.relative_to(ROOT), path.read_text()) for path in READ]

_PAGES = "|".join(re.escape(page) for page in SPEC if page != "README.md")
_CITATION = re.compile(
    rf"(?<![\w/(-])(?P<page>{_PAGES})"
    r"(?:\s+§(?P<section>\d+))?"
    r'(?:,?\s+"(?P<heading>[^"\n]+)")?'
    r"(?:\s+(?P<id>[A-Z]\d{1,2})\b)?"
)
_LINK = re.compile(r"\]\((?!https?:|#)(?P<target>[^)#\s]+)(?:#[^)]*)?\)")
_TEST = re.compile(r"`((?:(?:tests|e2e)/[\w/.-]+)?)(?:::(\w+))?`")
_ANY_PAGE = re.compile(r"(?<![\w/.-])(?P<page>[a-z][\w-]*\.md)\b")


def headings(page: str) -> list[str]:
    lines = [line for line in SPEC[page].splitlines() if line.startswith("#")]
    return [re.sub(r"\s*\*\(planned\)\*", "", line.lstrip("# ")).replace("`", "") for line in lines]


def problem(found: re.Match[str]) -> str | None:
    """Say what of a citation leads nowhere."""
    page, section, heading, fault = found["page"], found["section"], found["heading"], found["id"]
    if section and not any(title.startswith(f"{section}. ") for title in headings(page)):
        return f"no section {section}"
    if heading and heading.replace("`", "") not in headings(page):
        return f"no heading {heading!r}"
    if fault and page == "faults.md" and not re.search(rf"\|\s*{fault}\s*\|", SPEC[page]):
        return f"no fault {fault}"
    return None


def test_every_citation_of_the_specification_leads_somewhere():
    wrong = [
        f"{path}: {found[0]!r}: {what}"
        for path, text in TEXTS
        for found in _CITATION.finditer(text)
        if (what := problem(found))
    ]
    assert not wrong, "\n".join(wrong)
    assert sum(bool(_CITATION.search(text)) for _, text in TEXTS) > 15, "they are looked for"


def test_every_page_that_code_names_is_in_the_repository():
    names = {path.name for path in ROOT.rglob("*.md") if ".venv" not in path.parts}
    wrong = [
        f"{path}: {found['page']}"
        for path, text in TEXTS
        if path.suffix == ".py"
        for found in _ANY_PAGE.finditer(text)
        if found["page"] not in names
    ]
    assert not wrong, "\n".join(wrong)


def test_links_of_pages_outside_of_the_site_lead_somewhere():
    """Those of docs/ are the site's to check: `make docs`."""
    for page in ROOT.glob("*.md"):
        targets = [found["target"] for found in _LINK.finditer(page.read_text())]
        assert [target for target in targets if not (page.parent / target).exists()] == [], page


def test_tests_that_a_document_names_are_there():
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "tests" / "reports.md"]
    for page in pages:
        file = ""
        for path, test in _TEST.findall(page.read_text()):
            file = path or file
            if path:
                assert (ROOT / path).exists(), (page, path)
            if test and file.endswith(".py"):
                assert f"def {test}(" in (ROOT / file).read_text(), (page, file, test)
