"""An Agent's model, the ModelAPIs that it refers to resolved: a file of its pods. Pure.

The file lies in a ConfigMap of its own, so that another endpoint, model or limit restarts no pod.
A fallback that cannot be resolved is left out. An Agent whose model cannot be resolved keeps what
it has.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from diptych_operator.desired.drift import digest
from diptych_operator.desired.references import (
    ObservedState,
    Unresolved,
    usable,
)
from diptych_operator.resources.agent import Agent, KeyRef, key_refs_in
from diptych_operator.resources.kinds import MODEL_API, NamespacedName, Object, ObjectKey
from diptych_operator.resources.model_api import ModelApi
from diptych_operator.resources.owner import ManifestError

MODEL_KEY: Final = "model.json"
MODEL_FILE: Final = f"model/{MODEL_KEY}"
"""The file's path in the pod, relative to the mounted folder."""
_TOKENS: Final = "tokens/modelapi."


class UnresolvedModel(ManifestError):
    """A model whose ModelAPI is missing, forbids it, or does not serve it."""


def model_config_map_name(agent: Agent) -> str:
    """Name the ConfigMap with a resolved Agent's model, after the keys and tokens that it needs.

    Others need new pods: older ones must not read of files that they do not mount.
    """
    refs = key_refs_in(agent.model)
    return f"{agent.name}-model-{digest({'keys': refs, 'tokens': proxied_apis(agent)})[:6]}"


def with_model(agent: Agent, observed: ObservedState) -> Agent:
    """Return the Agent with its model resolved, as far as that is possible.

    Entries keep their `apiRef`, with the namespace.
    """
    if not agent.model_apis:
        return agent
    model, _ = _resolve(agent, observed)
    return replace(agent, spec={**agent.spec, "model": model}) if model else agent


def unresolved_models(agent: Agent, observed: ObservedState) -> Sequence[Unresolved]:
    """Return why the Agent's model, or a fallback of it, cannot be resolved."""
    return _resolve(agent, observed)[1] if agent.model_apis else ()


def check_model(agent: Agent, observed: ObservedState) -> None:
    """Raise `UnresolvedModel` if an Agent has no model."""
    if agent.model_apis:
        model, problems = _resolve(agent, observed)
        if model is None:
            raise UnresolvedModel(problems[0].reason, problems[0].message)


def model_document(agent: Agent) -> dict[str, Any]:
    """Return the content of the model file of a resolved Agent."""
    document = _without_ref(agent.model)
    if fallbacks := agent.model.get("fallbacks"):
        document["fallbacks"] = list(map(_without_ref, fallbacks))
    return document


def model_urls(agent: Agent) -> list[str]:
    """Return the URLs of the models of an Agent."""
    return list(replace(agent, spec={"model": agent.model}).urls)


def model_source(agent: Agent) -> Object:
    """Return the source of the model file in the pods' volume."""
    items = [{"key": MODEL_KEY, "path": MODEL_FILE}]
    return {"configMap": {"name": model_config_map_name(agent), "items": items}}


def proxied_apis(agent: Agent) -> list[NamespacedName]:
    """Name the ModelAPIs whose proxies a resolved Agent asks."""
    names = {
        (entry["apiRef"]["namespace"], entry["apiRef"]["name"]): None
        for entry in agent.models
        if "apiRef" in entry and "file" in (entry.get("apiKey") or {})
    }
    return list(names)


def token_file(api: NamespacedName) -> str:
    """Return the path of the token for a ModelAPI, relative to the mounted folder."""
    return f"{_TOKENS}{api[0]}.{api[1]}"


_Entry = Mapping[str, Any]


def _resolve(
    agent: Agent, observed: ObservedState
) -> tuple[dict[str, Any] | None, list[Unresolved]]:
    """Return the model, None if it cannot be resolved, and all problems."""
    problems: list[Unresolved] = []
    given, origin, api = agent.model, agent.namespace, None
    model: _Entry = given
    if "apiRef" in given:
        resolved = _resolved(agent, given, origin, observed)
        if isinstance(resolved, Unresolved):
            return None, [resolved]
        model = resolved
        api = observed.model_apis[_name(given, origin)]
        if problem := _prices_problem(agent, model, api):
            return None, [problem]
    fallbacks: Sequence[_Entry] = given.get("fallbacks") or ()
    may_have_keys = True
    if not fallbacks and api:
        fallbacks, origin, may_have_keys = api.fallbacks, api.namespace, not api.is_proxied
    found = []
    for entry in fallbacks:
        one: _Entry | Unresolved = entry
        if "apiRef" in entry:
            one = _resolved(agent, entry, origin, observed)
        elif has_key(entry) and not may_have_keys:
            one = Unresolved("FallbackHasKey", FALLBACK_HAS_KEY)
        if isinstance(one, Unresolved):
            problems.append(one)
        else:
            found.append(one)
    rest = {name: value for name, value in model.items() if name != "fallbacks"}
    return {**rest, **({"fallbacks": found} if found else {})}, problems


def _resolved(
    agent: Agent, entry: _Entry, origin: str, observed: ObservedState
) -> dict[str, Any] | Unresolved:
    """Return a model or fallback, completed by the ModelAPI that it names."""
    name = _name(entry, origin)
    key, there = ObjectKey(MODEL_API, *name), observed.model_apis.get(name)
    api = usable(agent, key, there, observed, "spec.model")
    if isinstance(api, Unresolved):
        return api
    model = entry.get("name") or api.default
    if model is None:
        message = f"{_shown(api)} has no default, and the Agent names no model; name one"
        return Unresolved("ModelNotListed", message)
    if not api.serves(model):
        models = ", ".join(api.spec["models"])
        message = f"{_shown(api)} does not serve model {model} (its spec.models are {models})"
        return Unresolved("ModelNotListed", message)
    merged: dict[str, Any] = {
        **entry,
        **_address(api),
        "apiRef": {"name": api.name, "namespace": api.namespace},
        "name": model,
    }
    is_first = entry is agent.model  # timeouts and prices are its alone
    for field in ("parameters", "timeouts") if is_first else ("parameters",):
        if values := {**(api.spec.get(field) or {}), **(entry.get(field) or {})}:
            merged[field] = values
    prices = entry.get("prices") or (api.spec.get("prices") or {}).get(model)
    if prices and is_first:
        merged["prices"] = prices
    return merged


def _address(api: ModelApi) -> Mapping[str, Any]:
    if not api.is_proxied:
        return api.address
    return {"endpoint": api.url, "apiKey": {"file": token_file(api.namespaced_name)}}


def _prices_problem(agent: Agent, model: _Entry, api: ModelApi) -> Unresolved | None:
    if "prices" in model or not _has_cost(agent.spec.get("budget")):
        return None
    message = (
        f"budget.cost needs prices, and {_shown(api)} has none of model {model['name']}; write "
        "them in its spec.prices, or in spec.model.prices of the Agent"
    )
    return Unresolved("PricesMissing", message)


def _has_cost(budget: object) -> bool:
    if not isinstance(budget, Mapping):
        return False
    return "cost" in budget or any(map(_has_cost, budget.values()))


FALLBACK_HAS_KEY: Final = (
    "a fallback with a key of its own would leave the namespace of a ModelAPI with proxy; write it "
    "as a ModelAPI with proxy, and name that by apiRef"
)


def has_key(entry: Mapping[str, Any]) -> bool:
    """Whether a model's entry has an API key or a header from a Secret."""
    return "apiKey" in entry or any("valueFrom" in one for one in entry.get("headers") or ())


def _name(entry: _Entry, origin: str) -> NamespacedName:
    ref = entry["apiRef"]
    return ref.get("namespace", origin), ref["name"]


def _shown(api: ModelApi) -> str:
    return f"ModelAPI {api.namespace}/{api.name}"


def _without_ref(entry: _Entry) -> dict[str, Any]:
    rest = {name: value for name, value in entry.items() if name not in {"apiRef", "fallbacks"}}
    return {name: with_files(value) for name, value in rest.items()}


def with_files(value: Any, folder: str = "") -> Any:  # noqa: ANN401 - JSON
    """Return JSON with the mounted file in place of each reference to a key of a Secret."""
    match value:
        case {"secretKeyRef": {"name": str(name), "key": str(key)}}:
            return {"file": folder + KeyRef("Secret", name, key).file}
        case Mapping():
            return {name: with_files(inner, folder) for name, inner in value.items()}
        case list() | tuple():
            return [with_files(inner, folder) for inner in value]
        case _:
            return value


def fallback_names(
    agent: Agent, apis: Mapping[NamespacedName, ModelApi]
) -> Iterator[NamespacedName]:
    """Name the ModelAPIs to which an Agent falls back because its ModelAPI does."""
    if "apiRef" not in agent.model or agent.model.get("fallbacks"):
        return
    if api := apis.get(_name(agent.model, agent.namespace)):
        yield from api.fallback_refs
