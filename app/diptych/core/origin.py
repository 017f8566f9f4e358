"""Where a request came from: a field of the first event of a run."""

from dataclasses import dataclass

from diptych.core.messages import ParentCall


@dataclass(frozen=True, slots=True)
class Origin:
    """What a request says about where it came from.

    `path` holds the card URLs of the agents before this one, `traceparent` the caller's trace
    (W3C Trace Context), `seconds` what was left until the caller's deadline. With
    `cancels_on_disconnect` the run is aborted when its last subscriber hangs up. `parent` is the
    call of another agent's run that this one comes from. The run is aborted when
    nobody has waited for it for `lease` seconds. If `deadline_pauses`, those seconds stand
    still while a call waits for approval.
    """

    path: tuple[str, ...] = ()
    traceparent: str | None = None
    seconds: float | None = None
    cancels_on_disconnect: bool = False
    parent: ParentCall | None = None
    deadline_pauses: bool = False
    lease: float | None = None
