"""The model of the simulation (`world`): it says anything, and stops when its process does."""

import asyncio
import json
import random

from diptych.errors import ModelError
from diptych.ports import Delta, Reply


class Model:
    """Says anything, most of it again if it is asked again; knows a session by its questions."""

    def __init__(self, world, replica):
        self.world, self.replica = world, replica

    async def complete(self, messages, index):
        chance = await self._think(messages, index)
        if chance.random() < 0.45:
            return Reply(chance.choice(["{}", "<>", "I know it.", '{"tool": ']))
        key = f"{_question(messages)}/{index}"
        calls = [
            {"tool": chance.choice(["charge", "look"]), "arguments": {"key": f"{key}/{n}"}}
            for n in range(chance.randrange(1, 4))
        ]
        return Reply(json.dumps(calls))

    async def stream(self, messages, index):
        chance = await self._think(messages, index)
        heard = {m.content.split()[1] for m in messages if m.content.startswith("Q ")}
        words = [*sorted(heard), *chance.choices("abcd", k=chance.randrange(6))]
        for word in words:
            yield Delta(f"{word} ")
            await asyncio.sleep(chance.choice([0, 0.01, 0.1, 2, 4]))
            await self.replica.passed()
        answer = "".join(f"{word} " for word in words)
        self.world.store.note("model", "answered", text=_question(messages), answer=answer)
        yield Delta(finish_reason="stop")

    async def _think(self, messages, index):
        again = random.Random(f"{self.world.seed} {_question(messages)} {index}")
        chance = again if self.world.chance.random() < 0.5 else self.world.chance
        await asyncio.sleep(self.world.chance.choice([0, 0.1, 1, 4]))
        await self.replica.passed()
        if self.world.chance.random() < 0.02:
            raise ModelError("model_failed", "no luck")
        return chance


def _question(messages):
    return next(m.content for m in reversed(messages) if m.content.startswith("Q "))
