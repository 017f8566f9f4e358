"""SIGSTOP for longer than a lease, then SIGCONT: what a former owner still wants to write
is refused (faults.md P6, G4)."""

import asyncio

from support.callers import chat_request, run_request
from support.orders import Charges, Pace
from support.redis_monitor import monitored
from support.scene import ALLOWED, order, order_scene
from support.stack import until


async def test_a_pod_that_stood_still_for_longer_than_its_lease_writes_nothing_more(
    tools: Charges,
) -> None:
    slow = Pace(reply=0.2, word=0.25)  # an answer takes some 20 s
    async with order_scene(tools, pace=slow) as on, monitored(on.redis, on.history) as seen:
        async with asyncio.timeout(120), asyncio.TaskGroup() as group:
            for n in range(6):  # all at the first pod: three chats, three that follow
                name = f"zombie {n}"
                request = chat_request(name, name) if n < 3 else run_request(name, name)
                group.create_task(order(on.caller(name), request, 15.0))
            await until(lambda: sum(len(caller.text) > 20 for caller in on.callers) == 6, 60)
            others = [on.caller(f"afar {n}", 1) for n in range(6)]
            for caller, other in zip(on.callers[:6], others, strict=True):
                group.create_task(other.subscribe(caller.run))
            on.pods[0].pause()
            on.trouble("SIGSTOP", ALLOWED + 15.0)  # another pod has the runs by then
            await until(lambda: all("owner_changed" in other.events for other in others), 60)
            assert all(not caller.end for caller in on.callers), "nobody was late enough"
            on.pods[0].resume()
        logs = await on.reckon()
        assert [c.text for c in on.callers[:6]] == [other.text for other in others]
        changes = [sum(frame.event == "owner_changed" for frame in log) for log in logs.values()]
        assert changes == [1] * 6
        assert {caller.connections for caller in on.callers} == {1}, "a caller had to connect again"
        stale = [line for words in STALE for line in on.pods[0].grep(words)]
        sessions = {line.partition("session session-")[2][:32] for line in stale}
        assert len(sessions) == 6, "the old owner did not notice"
        assert seen.refused, "the old owner wrote nothing: the fence was not put to the test"


STALE = ("another process has taken over", "lost the lease of session")
