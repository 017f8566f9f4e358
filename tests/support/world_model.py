"""The model of the simulation (`world`): it says anything, and stops when its process does."""

import asyncio
import json
import random

from diptych import ports
from diptych.core.errors import ModelError
from diptych.core.messages import NativeCall
from diptych.core.prompt import DIRECT
from diptych.ports import Delta, Reply


class Model(ports.Model):
    """Says anything, most of it again if it is asked again; knows a session by its questions."""

    def __init__(self, world, replica):
        self.world, self.replica = world, replica

    async def complete(self, request):
        chance = await self._think(request)
        if request.tools and self.world.refuses_tools():
            raise ModelError("tools_refused", "no tools")
        if chance.random() < self.world.silence:
            said = chance.choice(["{}", "<>", "I know it.", '{"tool": '])
            is_broken = said == '{"tool": ' and request.tools
            return Reply("", calls=(NativeCall("a", "look", said),)) if is_broken else Reply(said)
        calls = self.world.calls(chance, _key(request))
        return _native(calls) if request.tools else Reply(json.dumps(calls))

    async def stream(self, request):
        chance = await self._think(request)
        if request.tools and self.world.refuses_tools():
            raise ModelError("tools_refused", "no tools")
        is_direct = request.tools or request.messages[-1].content.endswith(DIRECT)
        if is_direct and chance.random() < 0.6:
            calls = self.world.calls(chance, _key(request))
            if request.tools and chance.random() < 0.5:
                reply = _native(calls)
                yield Delta(chance.choice([reply.text, "a b " * 60]))
                yield Delta(finish_reason="stop", calls=reply.calls)
            else:
                yield Delta(chance.choice(["{}", json.dumps(calls)]), finish_reason="stop")
            return
        heard = {question.split()[1] for question in _questions(request.messages)}
        words = [*sorted(heard), *chance.choices("abcd", k=chance.randrange(6))]
        for word in words:
            yield Delta(f"{word} ")
            await asyncio.sleep(chance.choice([0, 0.01, 0.1, 2, 4]))
            await self.replica.passed()
        answer = "".join(f"{word} " for word in words)
        self.world.store.note("model", "answered", text=_question(request.messages), answer=answer)
        yield Delta(finish_reason="stop")

    async def _think(self, request):
        again = random.Random(f"{self.world.seed} {_question(request.messages)} {request.index}")
        chance = again if self.world.chance.random() < 0.5 else self.world.chance
        await asyncio.sleep(self.world.chance.choice([0, 0.1, 1, 4]))
        await self.replica.passed()
        if self.world.chance.random() < 0.02:
            raise ModelError("model_failed", "no luck")
        return chance


def _key(request):
    return f"{_question(request.messages)}/{request.index}"


def _native(calls):
    """Ask for calls in the API's form; the last of them twice, under ids as some servers give."""
    asked = []
    for n, call in enumerate(calls):
        name = call.get("tool") or f"delegate_to_{call['agent']}"
        arguments = call.get("arguments") or {"task": call["task"]}
        asked.append(NativeCall(f"a{n}", name, json.dumps(arguments)))
    return Reply("Hm.", calls=(*asked, NativeCall("again", asked[-1].name, asked[-1].arguments)))


def _question(messages):
    return _questions(messages)[-1]


def _questions(messages):
    """All that was asked; neighbours of one role come as one message."""
    lines = [line for m in messages if m.role == "user" for line in m.content.splitlines()]
    return [line for line in lines if line.startswith("Q ")]
