"""What led only to a question to the model is recorded soon, in order, and whatever breaks."""

import asyncio

from support.doubles import ListeningModel, house, types
from support.replicas import replica, told
from support.shared_store import SharedStore
from support.stories import begin, log, virtually
from support.virtual_time import run_virtually

from diptych.core.run_settings import RunSettings
from diptych.runs.definition import AgentDefinition

MISREAD = '{"tool": "nope"}'


def event_types(store, run_id):
    return [r.event_type for r in log(store, run_id)]


@virtually
async def test_what_is_put_off_while_another_write_is_under_way_is_recorded_soon_too():
    """The store takes 0.5 s, the reply comes after 0.1 s, the model then thinks for a minute."""
    store = SharedStore()
    replies = [{"content": MISREAD, "delay_ms": 100}, {"content": "{}", "delay_ms": 60_000}, "Hi."]

    def slowly(call):
        return 0.5 if call.name == "append" and not call.is_done else None

    a = replica(store, "a", *replies, trouble=slowly)
    run_id = await begin(a)
    await asyncio.sleep(10)
    assert event_types(store, run_id)[-2:] == ["model_reply", "action_error"]


class Buggy(ListeningModel):
    """Misreads at first, and has a bug at the second question."""

    async def complete(self, request):
        if self.requests:
            self.requests.append(request.messages)
            await asyncio.sleep(0.2)
            raise RuntimeError("a bug")
        return await super().complete(request)


@virtually
async def test_a_bug_ends_the_run_at_once_also_while_a_write_is_under_way():
    store = SharedStore()

    def late(call):  # the reply of the store is, not what it does
        return 0.5 if call.is_done and "action_error" in call.about else None

    model = Buggy(MISREAD)
    a = replica(store, "a", model=model, trouble=late)
    run_id = await begin(a)
    await told(a, run_id)
    recorded = ["user_message", "offered", "model_reply", "action_error", "failed"]
    assert event_types(store, run_id) == recorded
    assert len(model.requests) == 2


def test_a_warning_comes_after_the_reply_that_it_is_about():
    async def story():
        rooms = house(
            MISREAD, MISREAD, "So.", definition=AgentDefinition("", RunSettings(max_retries=1))
        )
        heard = types(await rooms.ask())
        assert heard.index("[format_warning]") > heard.index("action_error")
        last = len(heard) - 1 - heard[::-1].index("action_error")
        assert heard.index("[format_warning]") > last, heard

    run_virtually(story())
