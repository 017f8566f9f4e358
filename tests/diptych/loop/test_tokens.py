"""What a request weighs at most, without weighing it."""

import random

from diptych.loop.messages import Message, NativeCall
from diptych.loop.model_request import FunctionTool, ModelRequest
from diptych.loop.tokens import most_weight, request_weight

ALPHABETS = ["abc xyz ", "0123456789,;{}[]", "QUJD+/=", "äöü ß", "漢字かな", "😀👍", "\ud800a"]


def test_no_request_weighs_more_than_is_said_at_most() -> None:
    chance = random.Random(3)

    def text() -> str:
        letters = "".join(chance.sample(ALPHABETS, chance.randrange(1, 4)))
        return "".join(chance.choice(letters) for _ in range(chance.randrange(300)))

    for _ in range(300):
        calls = (NativeCall("c1", "pay", text()),) if chance.random() < 0.3 else ()
        parts = ({"type": "image_url"},) if chance.random() < 0.3 else ()
        messages = (
            Message("system", text()),
            Message("user", text(), parts=parts),
            Message("assistant", text(), calls=calls, reasoning=chance.choice(["", text()])),
        )
        tools = (FunctionTool("pay", text(), {}),) if chance.random() < 0.3 else ()
        request = ModelRequest(messages, tools=tools)
        assert request_weight(request) <= most_weight(request)
