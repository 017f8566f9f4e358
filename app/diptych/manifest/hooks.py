"""The hooks of a manifest: URLs that are asked about calls, steps and answers."""

import re
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator

from diptych.manifest.durations import DurationRange
from diptych.manifest.headers import Headers
from diptych.manifest.key_refs import SecretSource
from diptych.manifest.rules import CelRule, cel_matches, rule_error
from diptych.manifest.strict_model import StrictModel
from diptych.manifest.urls import Url
from diptych.runs.definition import HOOK_TIMEOUT

_PRIVATE = re.compile(
    r"https://.*|http://(localhost|127(\.[0-9]{1,3}){3}|\[::1\]|[a-z]([-a-z0-9]*[a-z0-9])?"
    r"|[a-z0-9]([-.a-z0-9]*[a-z0-9])?\.svc(\.cluster\.local)?)(:[0-9]{1,5})?([/?].*)?"
)
_NEEDS_TLS = (
    "must be https: what a run does is read on the way, and answers could be forged; http only for "
    "loopback and Services of the cluster (name, or name.namespace.svc)"
)


def _with_tls(url: str) -> str:
    if not _PRIVATE.fullmatch(url):
        raise rule_error(_NEEDS_TLS)
    return url


HookUrl: TypeAlias = Annotated[
    Url, AfterValidator(_with_tls), CelRule(cel_matches(_PRIVATE.pattern), _NEEDS_TLS)
]


class HookSpec(StrictModel):
    """An address that is asked about runs by HTTP; see docs/hooks.md."""

    at: Literal["beforeCall", "afterCall", "afterStep", "validateAnswer"]
    """Where in a run it is asked: `beforeCall` may rewrite or deny a call, `afterCall` may replace
    its result, `afterStep` may end phase 1, `validateAnswer` may refuse the answer."""
    url: HookUrl
    """Where the questions are sent. Outside the cluster it must be https."""
    timeout: Annotated[float, DurationRange("0s", "30s")] = HOOK_TIMEOUT
    """How long it may take to answer, at most 30s."""
    headers: Headers = ()
    """Headers that every request carries."""
    signing_key: SecretSource | None = None
    """The key that signs each request, as Standard Webhooks does (`webhook-signature`): `whsec_`
    and base64, or any other text."""
