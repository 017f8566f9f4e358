"""Translates KAOS: `kaos.tools/v1alpha1`, and the older `ethical.institute` and `kaos.dev`."""

import copy
from collections.abc import Sequence

from diptych.importer.shared import (
    NO_ADDRESS,
    NO_REPLICAS,
    NO_TELEMETRY,
    move_command,
    move_env,
    move_resources,
    secret_in_place,
)
from diptych.importer.translation import Source, Translation
from diptych.manifest.documents import FieldPath
from diptych.manifest.providers import API_KEY, PROVIDERS, PUBLIC

GROUPS = ("kaos.tools", "ethical.institute", "kaos.dev")

_BUILD = "the image must hold diptych: build one FROM ours (docs/tools.md)"
_LITELLM = "it was LiteLLM's, which is not between"
_AGENT_DROPS = {
    "container": _BUILD,
    "agentNetwork.expose": "an Agent always has a Service; spec.access says who may ask it",
    "waitForDependencies": "an Agent starts at once; its conditions name what is missing",
    "gatewayRoute": "an Agent has an address outside only if spec.expose names its host",
    "replicas": NO_REPLICAS,
    "config.memory": "sessions are kept without it; a tool server can be a long-term memory",
    "config.agenticLoop": "it may call all that spec.tools and spec.agents name",
    "config.autonomous": "write spec.schedules: they start runs at times (docs/schedules.md)",
    "config.taskConfig": "write spec.budget: toolCalls and wallClock bound every run",
    "config.telemetry": NO_TELEMETRY,
}
_OWN_VARIABLES = {
    "MODEL_API_URL": "the ModelAPI has the address",
    "MODEL_NAME": "spec.model has the name",
    "AGENT_LOG_LEVEL": "LOG_LEVEL sets it here",
}
_ACCOUNT = "write spec.runtime.podTemplate.spec, with automountServiceAccountToken: true"
_ACTION_FORMATS = {"auto": "auto", "native": "native", "string": "json"}
_OURS = {
    **{name: name for name in PROVIDERS},
    "together_ai": "together",
    "lm_studio": "lmstudio",
    "hosted_vllm": "vllm",
    "ollama_chat": "ollama",
}
"""Our names of LiteLLM's providers; names of models begin with the latter."""
_ENV = ("spec.container.env", "spec.config.env", "spec.proxyConfig.env")


def translate(source: Source, sources: Sequence[Source]) -> Translation | None:
    """Make our object of a source; None if no kind here is like it."""
    del sources
    match source.kind:
        case "Agent":
            return _agent(source)
        case "ModelAPI":
            return _model_api(source)
        case "MCPServer":
            return _tool_server(source)
        case _:
            return None


def _agent(source: Source) -> Translation:
    t = Translation(source, "Agent")
    t.move("spec.config.description", "spec.description")
    prompts = [f"spec.config.{name}" for name in ("systemPrompt", "instructions")]
    if text := "\n\n".join(filter(None, map(t.text, prompts))):
        why = "systemPrompt and instructions are one text here" if all(map(t.text, prompts)) else ""
        for prompt in prompts:
            t.take(prompt)
        t.put("spec.instructions", text, why)
    _model(t)
    t.move("spec.config.toolCallMode", "spec.model.actionFormat", _ACTION_FORMATS.get)
    for item in t.items("spec.mcpServers"):
        name = t.require(item)
        t.take(item)
        t.add("spec.tools", {"name": name, "ref": {"name": name}})
    for item in t.items("spec.agentNetwork.access"):
        t.require(item)
        t.add("spec.agents", {"name": t.take(item)})
    t.move("spec.config.agenticLoop.maxSteps", "spec.loop.maxSteps")
    t.move("spec.config.reasoningLoopMaxSteps", "spec.loop.maxSteps")
    t.move("spec.config.memory.contextLimit", "spec.loop.memoryContextLimit")
    for env in ("spec.container.env", "spec.config.env"):
        move_env(t, env, "spec.container.env", _OWN_VARIABLES)
    for path in ("spec.container.resources", "spec.resources"):
        move_resources(t, path, "spec.container.resources")
    t.move("spec.podSpec", "spec.podTemplate.spec", why="its own container is called agent")
    t.drop_all(_AGENT_DROPS)
    return t.finish()


def _model(t: Translation) -> None:
    t.require("spec.modelAPI")
    t.move("spec.modelAPI", "spec.model.apiRef.name")
    path: FieldPath = ("spec", "model")
    variable = _find_variable(t, "MODEL_NAME")
    if t.peek(path) is None and variable:  # older
        t.take((*variable, "name"))
        path = (*variable, "value")
    t.move(path, "spec.model.name", _without_provider)


def _without_provider(name: str) -> str:
    """Return a model's name without LiteLLM's prefix."""
    provider, _, bare = name.partition("/")
    return bare if bare and provider in _OURS else name


def _find_variable(t: Translation, ending: str) -> FieldPath | None:
    """Find a variable by the end of its name."""
    items = (item for root in _ENV for item in t.items(root))
    return next((item for item in items if t.require((*item, "name")).endswith(ending)), None)


def _model_api(source: Source) -> Translation:
    t = Translation(source, "ModelAPI")
    if t.take_one_of("spec.mode", "Proxy", "Hosted") == "Hosted":
        _hosted(t)
    else:
        _proxy(t)
    t.drop_all(
        {
            "gatewayRoute": "spec.timeouts bounds the requests",
            "telemetry": "each Agent traces its requests to the model (docs/tracing.md)",
            "podSpec": "run your own Deployment, and write its address as endpoint",
            "container": _LITELLM,
            "hostedConfig": "mode is Proxy",
        }
    )
    return t.finish()


def _hosted(t: Translation) -> None:
    t.put("spec.hosted.engine", "ollama", "Ollama serves it")
    root = "spec.hostedConfig" if t.peek("spec.hostedConfig") else "spec.serverConfig"  # older
    name = t.require(f"{root}.model").removeprefix("ollama/")
    t.put("spec.hosted.image", t.take("spec.container.image") or "ollama/ollama:latest")
    t.put("spec.hosted.storage", {"size": "20Gi"})
    t.take(f"{root}.model")
    pull = f"kubectl exec deploy/{t.source.full_name[1]}-llm -- ollama pull {name}"
    t.put("spec.models", [name], f"Ollama does not pull it by itself: run `{pull}` once")
    t.put("spec.default", name)
    t.move("spec.container.args", "spec.hosted.args")
    for resources in ("spec.container.resources", f"{root}.resources"):
        move_resources(t, resources, "spec.hosted.resources")
    no_env = "a hosted model server is given no variables; set them in its image"
    t.drop("spec.container", no_env)
    t.drop(root, no_env)


def _proxy(t: Translation) -> None:
    root = "spec.proxyConfig"
    ours = _provider(t)
    base: FieldPath = ("spec", "proxyConfig", "apiBase")
    variable = _find_variable(t, "PROXY_API_BASE")
    if t.peek(base) is None and variable:  # older
        t.take((*variable, "name"))
        base = (*variable, "value")
    has_address = bool(t.text(base))
    if not has_address and ours not in PUBLIC:
        t.refuse(root, f"no OpenAI-compatible address is known: {NO_ADDRESS}")
    t.move(base, "spec.endpoint")
    if ours and not (has_address and ours == "openai"):
        t.take(f"{root}.provider")
        t.put("spec.provider", ours, "" if has_address else "its address is known")
    for item in [*t.items(f"{root}.models"), ("spec", "proxyConfig", "model")]:
        if name := t.text(item):
            t.take(item)
            bare = _without_provider(name)
            t.add("spec.models", bare, "" if bare == name else "it has no prefix here")
    names = [name for name in t.spec.get("models", ()) if "*" not in name]
    if len(names) == 1:
        t.put("spec.default", names[0])
    _key(t)
    t.drop_all({"provider": "the endpoint is asked itself", "env": _LITELLM}, root)


def _provider(t: Translation) -> str:
    """Return our name of a proxy's one provider, or "". Raises `Refused` for others."""
    root = "spec.proxyConfig"
    if t.peek(f"{root}.configYaml") is not None:
        one = "write a ModelAPI for each of its addresses, or keep LiteLLM and write its address"
        t.refuse(f"{root}.configYaml", f"LiteLLM's own configuration is not read here: {one}")
    names = [t.text(item) for item in t.items(f"{root}.models")] + [t.text(f"{root}.model")]
    found = {name.partition("/")[0] for name in names if "/" in name}
    known = sorted(found & _OURS.keys())
    if t.text(f"{root}.provider"):
        known = [t.text(f"{root}.provider")]
    if len(known) > 1:
        t.refuse(root, f"it asks {' and '.join(known)}: write a ModelAPI for each")
    return _OURS.get(known[0], "") if known else ""


def _key(t: Translation) -> None:
    """Find the key in apiKey, or in a variable of the proxy."""
    root: FieldPath | None = ("spec", "proxyConfig", "apiKey")
    if t.peek(root or "") is None:
        root = _find_variable(t, "API_KEY")
    if root is None:
        return
    source = (*root, "valueFrom", "secretKeyRef")
    if t.peek((*root, "value")) is not None:
        t.take((*root, "name"))
        t.take((*root, "value"))
        t.put("spec.apiKey", *secret_in_place(f"{t.source.full_name[1]}-key", API_KEY))
    elif t.peek(source) is not None:
        t.take((*root, "name"))
        for part in ("name", "key"):
            t.require((*source, part))
            t.move((*source, part), f"spec.apiKey.secretKeyRef.{part}")
    t.drop(root, "keys are in Secrets: make one, and name it as spec.apiKey")


def _tool_server(source: Source) -> Translation:
    t = Translation(source, "MCPServer")
    if t.peek("spec.type") is not None:  # older
        is_node = t.take_one_of("spec.type", "python-runtime", "node-runtime") == "node-runtime"
        runner = ["npx", "-y"] if is_node else ["uvx"]
        for path in ("spec.config.mcp", "spec.config.tools.fromPackage"):
            why = "the image must have it"
            t.move(path, "spec.source.command", lambda package: [*runner, package], why)
        t.move("spec.config.tools.fromString", "spec.source.python")
        if "source" not in t.spec:
            t.refuse("spec.config", "it names neither a package nor Python code")
    elif t.require("spec.runtime") == "python-string":
        t.take("spec.runtime")
        t.move("spec.params", "spec.source.python")
    else:
        if not t.peek("spec.container.image"):
            where = "the ConfigMap kaos-mcp-runtimes names its image: write it as container.image"
            t.refuse("spec.runtime", where)
        t.move("spec.container.image", "spec.source.containerImage.ref")
        t.move("spec.container.args", "spec.config.arguments")
        t.drop("spec.runtime", "the image decides")
    for env in ("spec.container.env", "spec.config.env"):
        move_env(t, env, "spec.config.env")
    move_resources(t, "spec.container.resources", "spec.runtime.resources")
    pod = "spec.runtime.podTemplate.spec"
    t.items("spec.podSpec.containers")
    t.move("spec.podSpec", pod, copy.deepcopy, "its own container is called server")
    if "containerImage" in t.spec.get("source", {}) and t.items("spec.container.command"):
        move_command(t, t.take("spec.container.command"))
    t.drop_all(
        {
            "container": "the server runs in Diptych's own image",
            "telemetry": NO_TELEMETRY,
            "serviceAccountName": _ACCOUNT,
            "params": "write it as the image expects it, in spec.config.env or arguments",
            "gatewayRoute": "a tool server has no address outside",
        }
    )
    return t.finish()
