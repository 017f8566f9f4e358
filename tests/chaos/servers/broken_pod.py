"""`diptych serve` that keeps no promise: a former owner may write, each call is sent again, and so
is each request.

With it a test shows that the checker of histories sees what it is there for.
"""

import hashlib

from diptych.cli import main
from diptych.core import pending
from diptych.stores.redis import event_log, leases, scripts

CHANGES = (  # anybody may write, at whatever seq is free; a request that comes again begins anew
    ("return fence ~= token and 'stale' or nil", "return nil"),
    ("first = tonumber(first)", "first = tonumber(redis.call('HGET', key('run', run), 'seq')) + 1"),
    ("local earlier = once ~= '' and", "local earlier = false and"),
)


def broken(script: scripts.Script) -> scripts.Script:
    """Return a script with something else where there was the right thing."""
    source = script.source
    for right, wrong in CHANGES:
        assert right in source, "there was nothing to break"
        source = source.replace(right, wrong)
    return scripts.Script(source, hashlib.sha1(source.encode()).hexdigest())


for module in (event_log, leases):
    module.RUNS = broken(scripts.RUNS)
    module.RUNS_WHEN_FULL = broken(scripts.RUNS_WHEN_FULL)
pending.is_repeatable = lambda call, catalog: True
main()
