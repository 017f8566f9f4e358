"""What both platforms' manifests have: other objects, variables, resources, providers, headers."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from diptych.importer.translation import AnyPath, Source, Translation
from diptych.manifest.documents import FieldPath
from diptych.manifest.providers import API_KEY, PROVIDERS

_OWN_WIRES = {
    "anthropic": "anthropic",
    "gemini": "gemini",
    "foundry": "azure",
    **dict.fromkeys(("vertex_ai", "geminivertexai", "anthropicvertexai", "bedrock"), ""),
    **dict.fromkeys(("sagemaker", "cohere", "sapaicore"), ""),
}
"""Providers with protocols of their own, and ours with an OpenAI-compatible address of theirs."""
_SECRET_HEADER = re.compile(r"authorization|key|token|secret|password|cookie", re.IGNORECASE)
_SECRET_VARIABLE = re.compile(r"(^|_)(KEY|TOKEN|SECRET|PASSWORD|CREDENTIALS?)$", re.IGNORECASE)
_OTLP = "OTEL_EXPORTER_OTLP_ENDPOINT"


def find(sources: Sequence[Source], kind: str, namespace: str, name: str) -> Source | None:
    """Return one of the objects that are imported together."""
    wanted = kind, (namespace, name)
    return next((one for one in sources if (one.kind, one.full_name) == wanted), None)


def refuse_own_wire(t: Translation, provider: str, path: AnyPath) -> None:
    """Refuse a provider that has a protocol of its own; say how to ask it."""
    ours = _OWN_WIRES.get(provider.lower())
    if ours is None:
        return
    advice = "put a gateway such as LiteLLM before it, and write its address as endpoint"
    if ours:
        address = PROVIDERS[ours].endpoint or "https://NAME.openai.azure.com"
        advice = f"write `provider: {ours}`, its OpenAI-compatible address ({address}), or {advice}"
    t.refuse(path, f"the protocol of {provider} is not spoken here: {advice}")


def default_key(t: Translation, provider: str, path: AnyPath) -> None:
    """Name the usual Secret of a provider that has keys, if the source names none."""
    if provider and (secret := PROVIDERS[provider].secret) and "apiKey" not in t.spec:
        t.take(path)
        reference = {"secretKeyRef": {"name": secret, "key": API_KEY}}
        t.put("spec.apiKey", reference, "no key is named: make this Secret, or name yours")


def find_variable(t: Translation, pattern: str, *roots: str) -> FieldPath | None:
    """Find a variable by its name."""
    items = (item for root in roots for item in t.items(root))
    return next((i for i in items if re.fullmatch(pattern, t.require((*i, "name")))), None)


def move_env(
    t: Translation, path: AnyPath, to: str, dropped: Mapping[str, str] | None = None
) -> None:
    """Move a container's variables, but those that only the other platform reads."""
    for item in t.items(path):
        name, value = t.require((*item, "name")), t.peek((*item, "value"))
        if why := (dropped or {}).get(name):
            t.drop(item, why)
        elif value is not None:
            add_named(t, to, name, value, item)
        else:
            t.add(to, t.take(item))


def move_resources(t: Translation, path: str, to: str) -> None:
    """Move requests and limits."""
    t.move_all({part: f"{to}.{part}" for part in ("requests", "limits")}, path)


def move_command(t: Translation, command: list[str]) -> None:
    """Write the entrypoint of a tool server's image that was taken."""
    containers = "spec.runtime.podTemplate.spec.containers"
    t.add(containers, {"name": "server", "command": command}, "in place of the image's own")


def move_replicas(t: Translation, path: str) -> None:
    """Move an Agent's replicas: more than one need a Redis, which only the user can name."""
    value = t.peek(path)
    is_more = isinstance(value, int) and value > 1
    why = f"more need spec.sessions.redis; then write {value} again" if is_more else ""
    t.move(path, "spec.replicas", lambda number: 1 if is_more else number, why)


def move_telemetry(t: Translation, path: str, to: str) -> None:
    """Move the address of an OTLP collector into the environment."""
    if t.peek(f"{path}.enabled") and t.text(f"{path}.endpoint"):
        t.take(f"{path}.enabled")
        variable = {"name": _OTLP, "value": t.take(f"{path}.endpoint").replace(":4317", ":4318")}
        t.add(to, variable, "OTLP goes over HTTP here, which collectors take at port 4318")
    t.drop(path, f"traces are sent once {_OTLP} is set in {to}")


def secret_in_place(secret: str, key: str) -> tuple[dict[str, Any], str]:
    """Return the reference that takes the place of a key in plain text, and what to do."""
    command = f"kubectl create secret generic {secret} --from-literal={key}=…"
    reference = {"secretKeyRef": {"name": secret, "key": key}}
    return reference, f"a manifest holds no key: run `{command}`"


def add_named(t: Translation, to: str, name: str, value: Any, path: AnyPath) -> None:  # noqa: ANN401
    """Add a header or variable; a Secret takes the place of a key in plain text."""
    t.take(path)
    pattern = _SECRET_HEADER if to.endswith("headers") else _SECRET_VARIABLE
    if pattern.search(name):
        reference, why = secret_in_place(f"{t.source.full_name[1]}-keys", name)
        t.add(to, {"name": name, "valueFrom": reference}, why)
    else:
        t.add(to, {"name": name, "value": value})


def seconds(value: Any) -> str:  # noqa: ANN401 - of a field
    """Return a duration of whole seconds; raise `ValueError` for no number."""
    return f"{int(value)}s"
