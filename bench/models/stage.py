"""Plays a run without a runtime: feeds it what the model says, makes its calls at once, and keeps
what the model is asked. The loop's own rules decide each request (`diptych.core.reducer`)."""

import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from diptych.core.catalog import DELEGATE_PREFIX
from diptych.core.commands import AskModel, Command, Emit, MakeCall
from diptych.core.events import (
    Called,
    Event,
    MessageQueued,
    Offered,
    Replied,
    Returned,
    RunRequested,
    Streamed,
)
from diptych.core.messages import Call, Delegation, JSONObject, Message, NativeCall, Result
from diptych.core.model_request import ModelRequest
from diptych.core.reducer import advance
from diptych.core.state import Phase, Run

STEER = "steer:"  # opens what the user says to a run that exists
NONCE = "5f0c9a71"
NO_ACTION = "{}"

Outcome = Callable[[Call], Result]


@dataclass(slots=True)
class Stage:
    """A run that is played: its state, its calls to be made, and the requests up to now."""

    run: Run
    outcome: Outcome
    calls: deque[MakeCall] = field(default_factory=deque)
    requests: list[ModelRequest] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        return self.run.phase is Phase.DONE

    def apply(self, event: Event) -> None:
        self.run, commands = advance(self.run, event)
        for command in commands:
            self._carry_out(command)

    def _carry_out(self, command: Command) -> None:
        match command:
            case Emit(event):
                self.apply(event)
            case AskModel(request):
                self.requests.append(request)
            case MakeCall():
                self.calls.append(command)

    def say(self, said: str) -> None:
        """Let the model (or, after `STEER`, the user) say something; make the calls in it."""
        if said.startswith(STEER):
            self.apply(MessageQueued(said.removeprefix(STEER), f"m{self.run.seq}"))
        elif self.run.phase is Phase.ANSWER:
            if said:
                self.apply(Streamed(said))
            self.apply(Replied(""))
        elif self.run.phase is Phase.ACT:
            self.apply(self._reply(said))
        while self.calls:
            command = self.calls.popleft()
            call = command.call
            self.apply(Called(call, command.step))
            if isinstance(call, Delegation):
                self.apply(Returned(self.outcome(call), "agent", call.agent))
            else:
                self.apply(Returned(self.outcome(call), "tool", call.name))

    def _reply(self, said: str) -> Replied:
        """Give a reply in the run's format: with native calls, JSON is the calls that it means."""
        if self.run.action_format == "json":
            return Replied(said)
        if said == NO_ACTION:
            return Replied("I have what I need.")
        if said[:1] not in {"{", "["}:
            return Replied(said)
        try:
            found = json.loads(said)
        except ValueError:  # a call whose arguments are no JSON
            return Replied("", calls=(NativeCall(f"call_{self.run.seq}", "calculator", said),))
        asked = found if isinstance(found, list) else [found]
        return Replied("", calls=tuple(self._native(n, one) for n, one in enumerate(asked)))

    def _native(self, place: int, asked: JSONObject) -> NativeCall:
        call_id = f"call_{self.run.seq}_{place}"
        if "agent" in asked:
            arguments = json.dumps({"task": asked["task"]})
            return NativeCall(call_id, f"{DELEGATE_PREFIX}{asked['agent']}", arguments)
        return NativeCall(call_id, str(asked["tool"]), json.dumps(asked["arguments"]))


def begin(
    asked: RunRequested, offered: Offered, outcome: Outcome, history: tuple[Message, ...] = ()
) -> Stage:
    stage = Stage(Run(history=history), outcome)
    stage.apply(asked)
    stage.apply(offered)
    return stage
