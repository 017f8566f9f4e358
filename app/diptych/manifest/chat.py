"""The part of a manifest that says what the callers of an agent's HTTP API may bring.

A new field stands here and, under the same name and with its default, in `ChatConfig`
(`config.settings`), which `http.chat` reads as `ChatTerms.config` and `http.guarded_runs` as it is;
then `make format` writes CRD and reference. `config.resolver` copies all fields.
"""

from typing import Annotated, Literal, TypeAlias

from diptych.manifest.fields import ShortList
from diptych.manifest.rules import Pattern
from diptych.manifest.settings import CallerParameter, ChatConfig
from diptych.manifest.strict_model import StrictModel

_DEFAULTS = ChatConfig()
_ORIGIN = r"\*|https?://([a-z0-9._-]{1,253}|\[[0-9a-f:.]{2,45}\])(:[0-9]{1,5})?"

WebOrigin: TypeAlias = Annotated[
    str,
    Pattern(
        _ORIGIN,
        'must be "*" or an origin such as https://app.example.com, in lower case, without a path',
        300,
    ),
]


class ChatSpec(StrictModel):
    """What the callers of the HTTP API may bring with a chat, and from which web pages."""

    caller_system: Literal["quote", "off"] = _DEFAULTS.caller_system
    """What becomes of a caller's system messages: `quote` adds them to the agent's own system
    prompt, quoted and marked as subordinate to it; `off` leaves them out."""
    caller_tools: Literal["refuse", "ignore"] = _DEFAULTS.caller_tools
    """What becomes of a chat that brings tools of its own: `refuse` answers with an error, `ignore`
    goes on without them and says so in a header. A single tool that the caller forces is neither:
    it asks for an answer of that tool's form."""
    allow_parameters: ShortList[CallerParameter] = _DEFAULTS.allow_parameters
    """The parameters of a chat that reach the model, such as `temperature`, in place of those in
    model.parameters. `max_tokens` stands for `max_completion_tokens` too. Others have no effect,
    and a header names them."""
    cors_origins: ShortList[WebOrigin] = _DEFAULTS.cors_origins
    """The origins of web pages whose scripts may use the paths under `/v1/` (CORS); "*" means all.
    An agent on loopback refuses pages of other hosts all the same."""
