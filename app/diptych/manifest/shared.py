"""The objects that Agents share, as files hold them, and what they say of an Agent's references."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TypeAlias

from diptych.manifest.agent import AgentManifest, AgentSpec, PeerSpec
from diptych.manifest.cluster import AllowedNamespaces
from diptych.manifest.documents import FieldPath, SourceLocation
from diptych.manifest.mcp_server import McpServerManifest
from diptych.manifest.model import ApiRef, FallbackSpec, ModelSpec
from diptych.manifest.model_api import ModelApiManifest, ModelApiSpec
from diptych.manifest.tools import ToolServerRef

ObjectId: TypeAlias = tuple[str, str]
"""Namespace and name."""
Problem: TypeAlias = tuple[FieldPath, str]


@dataclass(frozen=True, slots=True)
class SharedObjects:
    """ModelAPIs and MCPServers by namespace and name, each with its place."""

    apis: Mapping[ObjectId, tuple[ModelApiManifest, SourceLocation]] = field(default_factory=dict)
    servers: Mapping[ObjectId, tuple[McpServerManifest, SourceLocation]] = field(
        default_factory=dict
    )
    invalid: frozenset[tuple[str, str, str]] = frozenset()
    """Kind, namespace and name of objects with mistakes: to refer to one is no mistake."""

    def problems(self, agent: AgentManifest) -> Iterator[Problem]:
        """Find references that objects of the files refuse; others may be in the cluster."""
        spec, namespace = agent.spec, agent.metadata.namespace
        if spec.model:
            for path, model in models_of(spec.model):
                yield from self._model_problems(path, model, namespace)
            yield from self._price_problems(spec, namespace)
        for number, tool in enumerate(spec.tools):
            ref = tool.ref
            found = ref and not ref.is_foreign and self.servers.get(_id(ref, namespace))
            if ref and found:
                allowed = found[0].spec.allowed_namespaces
                if problem := consent_problem("MCPServer", _id(ref, namespace), namespace, allowed):
                    yield ("spec", "tools", number, "ref"), problem
                if not narrowed(tool.allow, allow := found[0].spec.tools.allow):
                    reason = f"MCPServer {ref.name} allows none of these; it allows"
                    yield ("spec", "tools", number, "allow"), f"{reason} {', '.join(allow)}"

    def _model_problems(
        self, path: FieldPath, model: ModelSpec | FallbackSpec, namespace: str
    ) -> Iterator[Problem]:
        if (ref := model.api_ref) is None or not (api := self._api(ref, namespace)):
            return
        allowed = api.allowed_namespaces
        if problem := consent_problem("ModelAPI", _id(ref, namespace), namespace, allowed):
            yield (*path, "apiRef"), problem
        if problem := model_problem(ref.name, api, model.name):
            yield (*path, "name"), problem

    def _price_problems(self, spec: AgentSpec, namespace: str) -> Iterator[Problem]:
        model = spec.model
        if not spec.budget.has_cost or model is None or model.prices or model.api_ref is None:
            return
        api = self._api(model.api_ref, namespace)
        if api and (name := model.name or api.default) and name not in api.prices:
            where = f"ModelAPI {model.api_ref.name}, or as model.prices"
            yield ("spec", "budget"), f"cost needs the prices of {name}: give them in {where}"

    def _api(self, ref: ApiRef, namespace: str) -> ModelApiSpec | None:
        found = self.apis.get(_id(ref, namespace))
        return found[0].spec if found else None


def misspelt(agent: AgentManifest, objects: Collection[tuple[str, str, str]]) -> Iterator[Problem]:
    """Find references to none of the `objects` (kind, namespace, name) that are similar to one."""
    for path, kind, ref in _references(agent.spec):
        namespace = ref.namespace or agent.metadata.namespace
        names = {(ns, name) for of_kind, ns, name in objects if of_kind == kind}
        if ref.name is None or (namespace, ref.name) in names:
            continue
        others = [f"{ns}/{name}" for ns, name in names if name == ref.name]
        others += get_close_matches(ref.name, [name for ns, name in names if ns == namespace])
        if others:
            where = f"{ref.name} in these files (namespace {namespace})"
            yield path, f"there is no {kind} {where}; did you mean {others[0]}?"


def _references(
    spec: AgentSpec,
) -> Iterator[tuple[FieldPath, str, ApiRef | ToolServerRef | PeerSpec]]:
    for path, model in models_of(spec.model) if spec.model else ():
        if model.api_ref:
            yield (*path, "apiRef"), "ModelAPI", model.api_ref
    for number, tool in enumerate(spec.tools):
        if tool.ref and not tool.ref.is_foreign:
            yield ("spec", "tools", number, "ref"), "MCPServer", tool.ref
    for number, peer in enumerate(spec.agents):
        yield ("spec", "agents", number), "Agent", peer


def models_of(model: ModelSpec) -> Iterator[tuple[FieldPath, ModelSpec | FallbackSpec]]:
    """List a model and its fallbacks, with their paths in an Agent."""
    path: FieldPath = ("spec", "model")
    yield path, model
    for number, fallback in enumerate(model.fallbacks):
        yield (*path, "fallbacks", number), fallback


def model_problem(api_name: str, api: ModelApiSpec, name: str | None) -> str | None:
    """Return why a ModelAPI does not serve a model of this name, or its default."""
    if name is None:
        missing = f"is required: ModelAPI {api_name} has no default"
        return None if api.default else missing
    if api.models and not any(fnmatchcase(name, pattern) for pattern in api.models):
        return f"is no model of ModelAPI {api_name}, which has {', '.join(api.models)}"
    return None


def consent_problem(
    kind: str, target: ObjectId, namespace: str, allowed: AllowedNamespaces | None
) -> str | None:
    """Return why an object may not be used from a namespace; nobody here knows its labels."""
    its_namespace, name = target
    if namespace == its_namespace or (allowed and allowed.from_ != "Same"):
        return None
    return (
        f"{kind} {name} of namespace {its_namespace} does not allow namespace {namespace}; set "
        "its allowedNamespaces"
    )


def narrowed(own: Sequence[str], servers: Sequence[str]) -> tuple[str, ...]:
    """Return names and globs of tools that both lists allow: entries that the other one covers."""
    pairs = ((own, servers), (servers, own))
    both = [
        entry for some, others in pairs for entry in some if any(_covers(o, entry) for o in others)
    ]
    return tuple(dict.fromkeys(both))


def _covers(glob: str, entry: str) -> bool:
    """Whether a glob matches all that a name or glob matches; at worst it says no."""
    is_comparable = not set("*?[").intersection(entry) or not set("?[").intersection(glob)
    return glob == entry or (is_comparable and fnmatchcase(entry, glob))


def _id(ref: ApiRef | ToolServerRef, namespace: str) -> ObjectId:
    return ref.namespace or namespace, ref.name
