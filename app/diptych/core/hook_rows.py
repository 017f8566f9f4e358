"""The rows of what hooks said, written and read."""

from collections.abc import Mapping
from typing import Any

from diptych.core.event_rows import Stored, call_content, call_metadata, read_call
from diptych.core.hook_events import AnswerJudged, CallJudged, HookEvent, StepJudged
from diptych.core.messages import JSON


def judged_row(event: HookEvent) -> tuple[str, JSON, dict[str, JSON]]:
    """The row of what hooks said; defaults are left out."""
    by: dict[str, JSON] = {"hook": event.hook} if event.hook else {}
    match event:
        case StepJudged(step, ends):
            return "step_judged", "end" if ends else "go on", {"step": step, **by}
        case AnswerJudged(problem):
            return "answer_judged", problem, by
        case CallJudged(call_id, call, denied):
            about: dict[str, JSON] = {"call_id": call_id, **by}
            if denied is not None:
                return "call_judged", "deny", {**about, "reason": denied}
            if call is None:
                return "call_judged", "allow", about
            labels = call_metadata(call, 0)
            about["call"] = call_content(call)
            about |= {name: labels[name] for name in ("id", "after") if name in labels}
            return "call_judged", "rewrite", about


def read_judged(event_type: str, content: Stored, metadata: Mapping[str, Any]) -> HookEvent:
    """Read such a row back."""
    hook = metadata.get("hook", "")
    if event_type == "step_judged":
        return StepJudged(metadata["step"], content == "end", hook)
    if event_type == "answer_judged":
        return AnswerJudged(content, hook)
    stored = metadata.get("call")
    call = read_call(stored, metadata) if stored else None
    return CallJudged(metadata["call_id"], call, metadata.get("reason"), hook)
