"""Translates KAOS: `kaos.tools/v1alpha1`, and the older `ethical.institute` and `kaos.dev`."""

import copy
from collections.abc import Sequence

from diptych.core.errors import ConfigError
from diptych.importer.shared import (
    default_key,
    find,
    find_variable,
    move_command,
    move_env,
    move_replicas,
    move_resources,
    move_telemetry,
    refuse_own_wire,
    seconds,
    secret_in_place,
)
from diptych.importer.translation import Refused, Source, Translation
from diptych.manifest.documents import FieldPath
from diptych.manifest.providers import API_KEY, PROVIDERS, PUBLIC

GROUPS = ("kaos.tools", "ethical.institute", "kaos.dev")
NO_EQUAL = {"MemoryStore": "there is no long-term memory; a tool server can be one"}

_BUILD = "the image must hold diptych: build one FROM ours (docs/tools.md)"
_LITELLM = "it was LiteLLM's, which is not between"
_AGENT_DROPS = {
    "container": _BUILD,
    "agentNetwork.expose": "an Agent always has a Service; spec.access says who may ask it",
    "agentNetwork.access": "it calls no agent",
    "mcpServers": "it has no tools",
    "waitForDependencies": "an Agent starts at once; its conditions name what is missing",
    "gatewayRoute": "an Agent has an address outside only if spec.expose names its host",
    "config.memory": "sessions are kept without it; a tool server can be a long-term memory",
    "config.agenticLoop": "it may call all that spec.tools and spec.agents name",
    "config.taskConfig.maxIterations": "a task is one run here, bounded by spec.loop.maxSteps",
    "config.taskConfig": "0 is no limit, as here without the field",
    "harness": "every Agent runs in Diptych's own loop",
}
_OWN_VARIABLES = {
    "MODEL_API_URL": "the ModelAPI has the address",
    "MODEL_NAME": "spec.model has the name",
    "AGENT_LOG_LEVEL": "LOG_LEVEL sets it here",
}
_ACTION_FORMATS = {"auto": "auto", "native": "native", "string": "json"}
_IMAGES = {
    "kubernetes": ("ghcr.io/containers/kubernetes-mcp-server:latest", ["--port", "8000"]),
    "slack": ("zencoderai/slack-mcp:latest", ["--transport", "http", "--port", "8000"]),
}
_OURS = {
    **{name: name for name in PROVIDERS},
    "together_ai": "together",
    "lm_studio": "lmstudio",
    "hosted_vllm": "vllm",
    "ollama_chat": "ollama",
}
"""Our names of LiteLLM's providers; names of models begin with the latter."""
_ADDRESSES = {"nebius": "https://api.tokenfactory.nebius.com/v1"}
"""Addresses that LiteLLM knows, of providers that we have no name for."""
_ENV = ("spec.container.env", "spec.config.env", "spec.proxyConfig.env")


def translate(source: Source, sources: Sequence[Source]) -> list[Translation]:
    """Make the object of ours that a source becomes. Raises `Refused` or `ConfigError`."""
    match source.kind:
        case "Agent":
            return [_agent(source, sources)]
        case "ModelAPI":
            return [_model_api(source)]
        case "MCPServer":
            return [_tool_server(source)]
        case _:
            raise Refused(source, (), f"no kind here is like {source.kind}")


def _agent(source: Source, sources: Sequence[Source]) -> Translation:
    t = Translation(source, "Agent")
    t.move("spec.config.description", "spec.description")
    prompts = [f"spec.config.{name}" for name in ("systemPrompt", "instructions")]
    if text := "\n\n".join(filter(None, map(t.text, prompts))):
        why = "systemPrompt and instructions are one text here" if all(map(t.text, prompts)) else ""
        for prompt in prompts:
            t.take(prompt)
        t.put("spec.instructions", text, why)
    _model(t, sources)
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
    _budget(t)
    _autonomous(t)
    move_replicas(t, "spec.replicas")
    for env in ("spec.container.env", "spec.config.env"):
        move_env(t, env, "spec.container.env", _OWN_VARIABLES)
    for path in ("spec.container.resources", "spec.resources"):
        move_resources(t, path, "spec.container.resources")
    move_telemetry(t, "spec.config.telemetry", "spec.container.env")
    t.move("spec.podSpec", "spec.podTemplate.spec", why="its own container is called agent")
    t.drop_all(_AGENT_DROPS)
    return t.finish()


def _model(t: Translation, sources: Sequence[Source]) -> None:
    api = t.require("spec.modelAPI")
    t.move("spec.modelAPI", "spec.model.apiRef.name")
    path: FieldPath = ("spec", "model")
    variable = find_variable(t, "MODEL_NAME", *_ENV)
    if t.peek(path) is None and variable:  # older
        t.take((*variable, "name"))
        path = (*variable, "value")
    source = find(sources, "ModelAPI", t.source.full_name[0], api)
    prefix = _prefix(source) if source else ""
    t.move(path, "spec.model.name", lambda name: name.removeprefix(f"{prefix}/"))


def _budget(t: Translation) -> None:
    why = "it holds for every run, not only for tasks of A2A"
    root = "spec.config.taskConfig"
    if t.peek(f"{root}.maxToolCalls"):
        t.move(f"{root}.maxToolCalls", "spec.budget.toolCalls", why=why)
    if t.peek(f"{root}.maxRuntimeSeconds"):
        t.move(f"{root}.maxRuntimeSeconds", "spec.budget.wallClock", seconds, why)


def _autonomous(t: Translation) -> None:
    """Make a schedule of a goal that is pursued again and again."""
    root = "spec.config.autonomous"
    if goal := t.text(f"{root}.goal").strip():
        interval = t.peek(f"{root}.intervalSeconds") or 0
        wanted = round(interval / 60) if isinstance(interval, int) else 0
        steps = (1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30)
        minutes = next((n for n in steps if n >= wanted), 60)
        every = {1: "*", 60: "0"}.get(minutes, f"*/{minutes}")
        schedule = {"name": "autonomous", "cron": f"{every} * * * *", "message": goal}
        t.take(f"{root}.goal")
        t.take(f"{root}.intervalSeconds")
        why = f"a schedule starts it again, in whole minutes: every {minutes}"
        t.add("spec.schedules", {**schedule, "session": "autonomous"}, why)
        if t.peek(f"{root}.maxIterRuntimeSeconds"):
            why = "it holds for every run of the agent"
            t.move(f"{root}.maxIterRuntimeSeconds", "spec.loop.deadline", seconds, why)
    t.drop(root, "it has no effect: no goal, or 0 for no limit")


def _model_api(source: Source) -> Translation:
    t = Translation(source, "ModelAPI")
    if t.take_one_of("spec.mode", "Proxy", "Hosted") == "Hosted":
        _hosted(t)
    else:
        _proxy(t)
    if t.text("spec.gatewayRoute.timeout").strip("0hms"):
        why = "it bounds each request to the model"
        t.move("spec.gatewayRoute.timeout", "spec.timeouts.total", why=why)
    t.drop_all(
        {
            "gatewayRoute": "0s is no limit; spec.timeouts has the defaults",
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
    t.drop_all({"spec.container": no_env, root: no_env, "spec.proxyConfig": "mode is Hosted"}, "")


def _proxy(t: Translation) -> None:
    root = "spec.proxyConfig"
    provider, ours = _provider(t)
    base: FieldPath = ("spec", "proxyConfig", "apiBase")
    variable = find_variable(t, "(LITELLM_)?PROXY_API_BASE", *_ENV)
    if t.peek(base) is None and variable:  # older
        t.take((*variable, "name"))
        base = (*variable, "value")
    has_address = bool(t.text(base))
    if not has_address and provider in _ADDRESSES:
        t.take(f"{root}.provider")
        t.put("spec.endpoint", _ADDRESSES[provider], "LiteLLM knew the address")
    elif not has_address and ours not in PUBLIC:
        t.refuse(root, "its address is not known: write one as apiBase")
    t.move(base, "spec.endpoint")
    if ours and not (has_address and ours == "openai"):
        t.take(f"{root}.provider")
        t.put("spec.provider", ours, "" if has_address else "its address is known")
    for item in [*t.items(f"{root}.models"), ("spec", "proxyConfig", "model")]:
        if name := t.text(item):
            t.take(item)
            bare = name.removeprefix(f"{provider}/")
            t.add("spec.models", bare, "" if bare == name else "it has no prefix here")
    names = [name for name in t.spec.get("models", ()) if "*" not in name]
    if len(names) == 1:
        t.put("spec.default", names[0])
    _key(t)
    default_key(t, "" if has_address else ours, "spec.mode")
    t.drop_all({"provider": "the endpoint is asked itself", "env": _LITELLM}, root)


def _provider(t: Translation) -> tuple[str, str]:
    """Return LiteLLM's name of a proxy's one provider, and ours. Raises `Refused` for others."""
    root = "spec.proxyConfig"
    if t.peek(f"{root}.configYaml") is not None:
        one = "write a ModelAPI for each of its addresses, or keep LiteLLM and write its address"
        t.refuse(f"{root}.configYaml", f"LiteLLM's own configuration is not read here: {one}")
    names = [t.text(item) for item in t.items(f"{root}.models")] + [t.text(f"{root}.model")]
    found = {name.partition("/")[0] for name in names if "/" in name}
    known = sorted(found & {*_OURS, "bedrock", "vertex_ai", "sagemaker", "cohere"})
    if t.text(f"{root}.provider"):
        known = [t.text(f"{root}.provider")]
    elif not known and t.peek(f"{root}.apiBase") is None:  # LiteLLM guesses
        guesses = {"claude": "anthropic", "gemini": "gemini", "gpt": "openai", "o3": "openai"}
        known = sorted({guesses[s] for s in guesses if any(name.startswith(s) for name in names)})
    if len(known) > 1:
        t.refuse(root, f"it asks {' and '.join(known)}: write a ModelAPI for each")
    provider = known[0] if known else ""
    refuse_own_wire(t, provider, root)
    return provider, _OURS.get(provider, "")


def _prefix(source: Source) -> str:
    """Return the prefix of the models that a ModelAPI serves, which is gone here."""
    try:
        t = Translation(source, "ModelAPI")
        return "ollama" if t.peek("spec.mode") == "Hosted" else _provider(t)[0]
    except (Refused, ConfigError):  # it is reported where the ModelAPI is translated
        return ""


def _key(t: Translation) -> None:
    """Find the key in apiKey, or in a variable of the proxy."""
    root: FieldPath | None = ("spec", "proxyConfig", "apiKey")
    if t.peek(root or "") is None:
        root = find_variable(t, ".*API_KEY", *_ENV)
    if root is None:
        return
    t.take((*root, "name"))
    why = ""
    if t.take((*root, "value")) is not None:
        reference, why = secret_in_place(f"{t.source.full_name[1]}-key", API_KEY)
        t.put("spec.apiKey", reference, why)
    for kind in ("secretKeyRef", "configMapKeyRef"):
        source = (*root, "valueFrom", kind)
        if t.peek(source) is not None:
            reference = {part: t.require((*source, part)) for part in ("name", "key")}
            for part in reference:
                t.take((*source, part))
            moved = "keys are in Secrets: move it there from the ConfigMap of this name"
            why = moved if kind == "configMapKeyRef" else ""
            t.put("spec.apiKey", {"secretKeyRef": reference}, why)


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
        _image(t, t.text("spec.runtime"))
    for env in ("spec.container.env", "spec.config.env"):
        move_env(t, env, "spec.config.env")
    move_resources(t, "spec.container.resources", "spec.runtime.resources")
    move_telemetry(t, "spec.telemetry", "spec.config.env")
    pod = "spec.runtime.podTemplate.spec"
    t.items("spec.podSpec.containers")
    t.move("spec.podSpec", pod, copy.deepcopy, "its own container is called server")
    if "containerImage" in t.spec.get("source", {}) and t.items("spec.container.command"):
        move_command(t, t.take("spec.container.command"))
    if account := t.take("spec.serviceAccountName"):
        t.put(f"{pod}.serviceAccountName", account, "the account and its rights stay yours to make")
        t.put(f"{pod}.automountServiceAccountToken", value=True)
    t.drop_all(
        {
            "container": "the server runs in Diptych's own image",
            "params": "write it as the image expects it, in spec.config.env or arguments",
            "gatewayRoute": "a tool server has no address outside",
        }
    )
    return t.finish()


def _image(t: Translation, runtime: str) -> None:
    """Make a server of an image: the object's own, or that of a runtime that KAOS ships."""
    image, arguments = _IMAGES.get(runtime, ("", []))
    if t.peek("spec.container.image"):
        t.move("spec.container.image", "spec.source.containerImage.ref")
        t.drop("spec.runtime", "the image decides")
    elif image:
        t.take("spec.runtime")
        why = "KAOS ships this runtime with that image: pin its version"
        t.put("spec.source.containerImage.ref", image, why)
    else:
        where = "the ConfigMap kaos-mcp-runtimes names its image: write it as container.image"
        t.refuse("spec.runtime", where)
    if t.peek("spec.container.args") is None and arguments:
        t.put("spec.config.arguments", list(arguments))
    t.move("spec.container.args", "spec.config.arguments")
