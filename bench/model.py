"""An instant model behind an OpenAI-compatible endpoint: `python -m bench.model`.

It reads what to do from the question, which opens with `rounds=R calls=C pace=P `: ask for C calls
at once, R times over, then for nothing; the answer is 200 tokens, all of them in one write, or P
of them a second (0: at once). Which round it is, it sees in the last `[Step n/max]`.
"""

import asyncio
import json

from bench.wire import Request, chunk, reply, run

TOKENS = 200
MARK = b"tok"  # opens each token of the answer, and stands nowhere else in a stream
_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


def _event(delta: dict[str, str], finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    body = {
        "id": "chatcmpl-B9MBs8CjcvOU2jLn4n570S5qMJKcT",
        "object": "chat.completion.chunk",
        "created": 1741569952,
        "model": "instant-1",
        "system_fingerprint": "fp_44709d6fcb",
        "choices": [choice],
    }
    return b"data: %b\n\n" % json.dumps(body, separators=(",", ":")).encode()


_USAGE = (
    b'data: {"id":"chatcmpl-B9MBs8CjcvOU2jLn4n570S5qMJKcT","object":"chat.completion.chunk",'
    b'"created":1741569952,"model":"instant-1","choices":[],"usage":{"prompt_tokens":100,'
    b'"completion_tokens":200,"total_tokens":300}}\n\n'
)
_OPENING = _event({"role": "assistant", "content": ""})
_DELTAS = [_event({"content": f"{MARK.decode()}{n} "}) for n in range(TOKENS)]
_CLOSING = _event({}, "stop") + _USAGE + b"data: [DONE]\n\n"
_AT_ONCE = _HEAD + b"".join(map(chunk, [_OPENING, *_DELTAS, _CLOSING, b""]))


def _whole(text: str) -> bytes:
    message = {"role": "assistant", "content": text, "refusal": None}
    body = {
        "id": "chatcmpl-B9MBs8CjcvOU2jLn4n570S5qMJKcT",
        "object": "chat.completion",
        "created": 1741569952,
        "model": "instant-1",
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120},
    }
    return reply(json.dumps(body, separators=(",", ":")).encode())


def _streamed(text: str) -> bytes:
    """A reply of phase 1 as it is streamed: an event for each four characters, in one write."""
    deltas = [_event({"content": text[n : n + 4]}) for n in range(0, len(text), 4)]
    return _HEAD + b"".join(map(chunk, [_OPENING, *deltas, _CLOSING, b""]))


def _both(text: str) -> dict[bool, bytes]:
    return {False: _whole(text), True: _streamed(text)}


def _asking(done: int, calls: int) -> dict[bool, bytes]:
    """Ask for calls that no round before had: the same call again and again ends a run."""
    asked = [{"tool": "echo", "arguments": {"text": f"hello {done}.{n}"}} for n in range(calls)]
    return _both(json.dumps(asked if calls > 1 else asked[0]))


_MODELS = reply(b'{"object":"list","data":[{"id":"instant-1","object":"model"}]}')
_NOTHING = _both("{}")
_FINAL = b"Now provide your final response"  # opens phase 2
_CALLS = {(done, calls): _asking(done, calls) for done in range(10) for calls in (1, 4)}
_pacing: set[asyncio.Task[None]] = set()


def respond(request: Request) -> None:
    body = request.body
    if not body:
        request.write(_MODELS)  # an agent looks which models there are
        return
    plan = _plan(body)
    is_streamed = b'"stream":true' in body
    if _FINAL in body:
        if not plan["pace"]:
            request.write(_AT_ONCE)
            return
        task = asyncio.get_running_loop().create_task(_paced(request, plan["pace"]))
        _pacing.add(task)
        task.add_done_callback(_pacing.discard)
    elif (done := _rounds_done(body)) < plan["rounds"]:
        request.write(_CALLS[done, plan["calls"]][is_streamed])
    else:
        request.write(_NOTHING[is_streamed])


def _plan(body: bytes) -> dict[str, int]:
    words = body[body.rindex(b"rounds=") :].split(b" ", 3)[:3]
    return {name.decode(): int(value) for name, value in (word.split(b"=") for word in words)}


def _rounds_done(body: bytes) -> int:
    at = body.rfind(b"[Step ")
    return int(body[at + 6 : at + 7]) if at >= 0 else 0


async def _paced(request: Request, pace: int) -> None:
    request.write(_HEAD + chunk(_OPENING))
    for delta in _DELTAS:
        if request.is_closing():
            return
        request.write(chunk(delta))
        await asyncio.sleep(1 / pace)
    request.write(chunk(_CLOSING) + chunk(b""))


if __name__ == "__main__":
    run(respond)
