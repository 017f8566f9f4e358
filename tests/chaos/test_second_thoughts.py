"""A model that answers differently when it is asked again (loop.md §9 "A new owner")."""

import asyncio
import itertools

from aiohttp import web
from support.model_server import Exchange, model_server
from support.orders import say_slowly
from support.scene import scene
from support.stack import until

FIRST = "one two three four five six seven eight nine ten eleven twelve"
SECOND = "one two three four FIVE six and this is all there is to say"


async def test_readers_at_both_pods_see_one_reset_and_the_same_new_text() -> None:
    answers = itertools.chain([FIRST], itertools.repeat(SECOND))

    async def model(exchange: Exchange) -> web.StreamResponse:
        if not exchange.is_phase_2:
            return await exchange.say("{}")
        return await say_slowly(exchange, next(answers), 0.3)

    async with model_server(model) as server:
        async with scene(MODEL_API_URL=server.url, MODEL_NAME="m") as on:
            asking, near, afar = (on.caller(name) for name in ("asking", "near", "afar"))
            afar.turn_to_next()
            async with asyncio.timeout(60), asyncio.TaskGroup() as group:
                run = await asking.start("count", 10.0)
                group.create_task(near.subscribe(run))
                group.create_task(afar.subscribe(run))
                await until(lambda: len(near.text.split()) >= 8, 30)
                on.pods[0].kill()
                on.trouble("kill -9", 10.0)
                on.pods[0].start()
            logs = await on.reckon()
    assert near.text == afar.text == SECOND
    events = [frame.event for frame in logs[run]]
    assert events.count("answer_reset") == 1
    assert near.frames == afar.frames == {frame.id: frame.raw for frame in logs[run]}
    (response,) = (frame for frame in logs[run] if frame.event == "agent_response")
    assert response.body["content"] == SECOND
