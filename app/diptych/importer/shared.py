"""Translates the parts that both platforms have: variables, resources, providers, headers."""

import re
from collections.abc import Mapping
from typing import Any

from diptych.importer.translation import AnyPath, Translation

_SECRET_HEADER = re.compile(r"authorization|key|token|secret|password|cookie", re.IGNORECASE)
_SECRET_VARIABLE = re.compile(r"(^|_)(KEY|TOKEN|SECRET|PASSWORD|CREDENTIALS?)$", re.IGNORECASE)
NO_ADDRESS = "put a gateway such as LiteLLM before it, and write its address as endpoint"
NO_TELEMETRY = (
    "set OTEL_EXPORTER_OTLP_ENDPOINT as a variable; OTLP goes over HTTP (docs/tracing.md)"
)
NO_REPLICAS = "more than one need spec.sessions.redis; then write spec.replicas"


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
