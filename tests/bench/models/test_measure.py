"""The table of prompts is of today, and what the stories send is what templates take."""

from pathlib import Path

from bench.models import measure, stories

ROOT = Path(__file__).parents[3]


def test_the_table_in_the_docs_was_measured_with_the_prompts_of_today():
    page = (ROOT / "docs" / "prompts.md").read_text()
    assert f"Measured with prompts `{measure.digest()}`." in page, (
        "what the model is sent has changed: measure it (`PARTS=prompts make models`), and put the "
        "table into docs/prompts.md"
    )


def test_every_request_of_the_stories_ends_with_the_user_and_never_repeats_a_role():
    modes = "json, separate", "json, direct, schema", "native, separate"
    found = [r for story in stories.stories(modes) for r in stories.requests_of(story)]
    in_text = [r for r in found if not any(m.calls or m.role == "tool" for m in r.messages)]
    assert len(in_text) > 500
    for request in in_text:
        roles = [m.role for m in request.messages if m.role != "system"]
        assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"]
