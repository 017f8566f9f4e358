"""`diptych serve` that keeps no promise: a former owner may write, each call is sent again, and so
is each request.

With it a test shows that the checker of histories sees what it is there for.
"""

import hashlib

from diptych.cli import main
from diptych.core import pending
from diptych.stores.redis import event_log, scripts


def broken(script: scripts.Script, *changes: tuple[str, str]) -> scripts.Script:
    """Give a script in which there is something else where there was what is right."""
    source = script.source.decode()
    for right, wrong in changes:
        source = source.replace(right, wrong)
    assert source != script.source.decode(), "there was nothing to break"
    return scripts.Script(source.encode(), hashlib.sha1(source.encode()).hexdigest().encode())


WITHOUT_FENCE = (  # anybody may write, at whatever seq is free
    ("return fence ~= token and 'stale' or nil", "return nil"),
    ("local at = first + i - RECORDS", "local at = seq + #added + 1"),
    ("if first > seq + 1 then", "if false then"),
)
for name in ("APPEND", "APPEND_END", "FINISH_RUN", "RENEW", "NEXT_RUN"):
    setattr(scripts, name, broken(getattr(scripts, name), *WITHOUT_FENCE))
scripts.OPEN = broken(scripts.OPEN, ("local once = ARGV[12] ~= '' and", "local once = false and"))
# What a former owner wrote stands out of place: a pod that keeps its promises leaves such rows out.
event_log._own_records = lambda found, run_id, session_id: [
    event_log.decode_record(fields[1], run_id, session_id) for _, fields in found
]
pending.is_repeatable = lambda call, catalog: True
main()
