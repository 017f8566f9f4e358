"""What an agent of ours says of a task beside its answer, as metadata of the task and its status.

    {"usage": {"promptTokens": 7, "completionTokens": 2}, "code": "model_cut"}

`usage` adds up the model calls of the task's run and of all its children, as far as they are on
record; `used` all that budgets limit. `code` says why the run ended, if it has no answer. All stand
under `extension.URI`.

Others may send anything: what is not of this form is left out, and what is too long is cut.
"""

import re
from dataclasses import dataclass

from diptych.a2a.amounts import read_amounts, read_count
from diptych.core.budget import encode_budget
from diptych.core.delegation_rows import usage_value
from diptych.core.messages import JSON, JSONObject, Usage, Used

_CODE = re.compile(r"[a-z][a-z0-9_]{0,63}")


@dataclass(frozen=True, slots=True)
class TaskReport:
    """What a task has used so far, with its children; and why it ended without an answer.

    `used` is all that budgets limit. One that `is_unreadable` names amounts that are none.
    """

    usage: Usage | None = None
    code: str = ""
    used: Used | None = None
    is_unreadable: bool = False


def report_value(report: TaskReport) -> JSONObject:
    """Write a report; what is not known is left out."""
    value: dict[str, JSON] = {}
    if report.usage is not None:
        value["usage"] = usage_value(report.usage)
    if report.code:
        value["code"] = report.code
    if report.used is not None:
        value["used"] = {k: v for k, v in encode_budget(report.used).items() if v not in (0, "0")}
    return value


def read_report(value: JSON) -> TaskReport:
    """Read what the metadata of a task or a status hold under the extension's URI."""
    if not isinstance(value, dict):
        return TaskReport()
    code = value.get("code")
    is_code = isinstance(code, str) and _CODE.fullmatch(code)
    amounts = read_amounts(value.get("used"))
    used = None if amounts is None else Used(**amounts)
    usage = read_tokens(value.get("usage"))
    named = value.get("used") is not None, usage is None and value.get("usage") is not None
    is_unreadable = used is None and any(named)
    return TaskReport(usage, str(code) if is_code else "", used, is_unreadable)


def read_tokens(value: JSON) -> Usage | None:
    """Read tokens that another agent says were used; None if they are none."""
    if not isinstance(value, dict):
        return None
    prompt, completion = (
        read_count(value.get(f"{kind}_tokens")) for kind in ("prompt", "completion")
    )
    return None if prompt is None or completion is None else Usage(prompt, completion)
