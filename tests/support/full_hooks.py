"""The hooks of the simulation of everything: they deny, change, end, find fault, crash, hang."""

import asyncio
import zlib

from diptych.runs.hooks import Hook, Hooks

HOOK_SECONDS = 2.0
POINTS = ("beforeCall", "afterCall", "afterStep", "validateAnswer")


class HooksOfWorld:
    """The part of a world that its hooks are; `points` are where it has some."""

    def hooks(self, replica):
        asks = {
            "beforeCall": self.before_call,
            "afterCall": self.after_call,
            "afterStep": self.after_step,
            "validateAnswer": self.validate_answer,
        }

        def hook(point):
            async def ask(question):
                await replica.passed()
                luck = self.whole.random()
                if luck < 0.02:
                    raise ValueError("crashed")
                await asyncio.sleep(2 * HOOK_SECONDS if luck < 0.03 else luck)
                return asks[point](question)

            return Hook(point, point, ask, HOOK_SECONDS)

        return Hooks(tuple(map(hook, self.points)))

    def before_call(self, question):
        call = question["call"]
        if "tool" not in call or call["tool"] == "poke":
            return None
        key = call["arguments"]["key"]
        if is_denied(key):
            return {"deny": "not this one"}
        return {"arguments": {"key": f"{key}~"}} if is_rewritten(key) else None

    def after_call(self, question):
        result = question["result"]
        return None if "error" in result else {"result": {"text": f"seen {result['text']}"}}

    def after_step(self, question):
        return {"end": self.whole.random() < 0.1}

    def validate_answer(self, question):
        if self.whole.random() < 0.3:
            return {"problem": "not good enough"}
        self.passed_answers.add((question["run_id"], question["answer"]))
        return None


def is_denied(key):
    """Whether the hook denies a call: as the key says, that it has from the model."""
    return zlib.crc32(key.removesuffix("~").encode()) % 5 == 0


def is_rewritten(key):
    """Whether the hook gives a call another key, and has not yet."""
    return not key.endswith("~") and zlib.crc32(key.encode()) % 5 == 1
