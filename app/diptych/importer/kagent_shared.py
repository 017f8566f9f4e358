"""Translates kagent's models and tool servers: ModelConfig, RemoteMCPServer, ToolServer, kmcp."""

from collections.abc import Sequence
from typing import Any

from diptych.importer.shared import (
    add_named,
    default_key,
    find,
    move_command,
    move_resources,
    refuse_own_wire,
    seconds,
)
from diptych.importer.translation import AnyPath, Source, Translation, place

GROUPS = ("kagent.dev", "api.kagent.dev")

_SERVERS = ("MCPServer", "RemoteMCPServer", "ToolServer")
_OURS = {"OpenAI": "openai", "AzureOpenAI": "azure", "Ollama": "ollama"}
_KEYS = {"OpenAI": "OPENAI_API_KEY", "AzureOpenAI": "AZURE_OPENAI_API_KEY"}
_PARAMETERS = {
    "temperature": "spec.parameters.temperature",
    "maxTokens": "spec.parameters.maxTokens",
    "maxCompletionTokens": "spec.parameters.maxTokens",
    "reasoningEffort": "spec.parameters.reasoningEffort",
}
_NO_PARAMETER = "the endpoint decides it; spec.chat.allowParameters lets callers send it"
_MODEL_DROPS = {
    "options.num_ctx": "an Agent's spec.context.maxTokens bounds the context",
    "n": "one reply is asked for",
    "apiFormat": "models are asked by chat completions",
    "tokenExchange": "put a proxy before the endpoint that exchanges tokens",
    "azureAdToken": "make a Secret of it, and name it as apiKey",
    **dict.fromkeys(("topP", "frequencyPenalty", "presencePenalty", "seed"), _NO_PARAMETER),
    "options": _NO_PARAMETER,
}
_NO_TLS = (
    "mount your CA into the pods and name it in SSL_CERT_FILE (docs/platform.md); verification "
    "cannot be switched off"
)
_SSE = (
    "the transport HTTP+SSE is not spoken here: start the server with streamable HTTP and write "
    "that URL (often …/mcp)"
)
_NO_DESCRIPTION = "a tool server has no description; its tools have theirs"
_POD = "spec.runtime.podTemplate"
_HOSTED = {
    "replicas": "spec.runtime.replicas",
    **{part: f"{_POD}.metadata.{part}" for part in ("labels", "annotations")},
    **{part: f"{_POD}.spec.{part}" for part in ("tolerations", "affinity", "nodeSelector")},
    "imagePullSecrets": f"{_POD}.spec.imagePullSecrets",
}
_RESTRICTED = "pods are restricted; spec.runtime.security sets the user"
_HOSTED_DROPS = {
    "image": "Diptych's image runs the command: build one FROM it that has the program",
    "port": "the server is asked at another one",
    "initContainer": "there is no adapter to copy",
    "imagePullPolicy": "images are pulled as Kubernetes does by default",
    "serviceAccount": "the operator makes an account without rights; podTemplate can name yours",
    "securityContext": _RESTRICTED,
    "podSecurityContext": _RESTRICTED,
    "volumes": "write them as spec.config.storage",
    "volumeMounts": "write them as spec.config.storage",
}


def model_config(source: Source) -> Translation:
    """Make a ModelAPI with one model."""
    t = Translation(source, "ModelAPI")
    provider = t.text("spec.provider") or "OpenAI"
    refuse_own_wire(t, provider, "spec.provider")
    if provider not in _OURS:
        t.refuse("spec.provider", f"{provider} is not known here: write a ModelAPI by hand")
    root = f"spec.{provider[0].lower()}{provider[1:]}"
    model = t.require("spec.model")
    _address(t, provider, root)
    _key(t, provider)
    for name, value in t.mapping("spec.defaultHeaders").items():
        add_named(t, "spec.headers", name, value, ("spec", "defaultHeaders", name))
    if organization := t.text(f"{root}.organization"):
        add_named(t, "spec.headers", "OpenAI-Organization", organization, f"{root}.organization")
    t.take("spec.model")
    t.put("spec.models", [model])
    t.put("spec.default", model)
    t.move_all(_PARAMETERS, root)
    t.move(f"{root}.options.temperature", "spec.parameters.temperature")
    t.move(f"{root}.options.num_predict", "spec.parameters.maxTokens", int)
    t.move(f"{root}.timeout", "spec.timeouts.total", seconds)
    t.drop_all(_MODEL_DROPS, root)
    t.drop_all(
        {
            "tls": _NO_TLS,
            "modelInfo": "an Agent's spec.model.inputs and actionFormat say what its model can do",
            "apiKeyPassthrough": "a caller's key is not passed on: name one as apiKey",
        }
    )
    return t.finish()


def _address(t: Translation, provider: str, root: str) -> None:
    t.take("spec.provider")
    if provider == "OpenAI" and t.text(f"{root}.baseUrl"):
        t.move(f"{root}.baseUrl", "spec.endpoint")
        return
    t.put("spec.provider", _OURS[provider])
    if provider == "AzureOpenAI":
        azure = t.require(f"{root}.azureEndpoint").rstrip("/")
        deployment = t.text(f"{root}.azureDeployment") or t.text("spec.model")
        version = t.require(f"{root}.apiVersion")
        for part in ("azureEndpoint", "azureDeployment", "apiVersion"):
            t.take(f"{root}.{part}")
        path = f"openai/deployments/{deployment}/chat/completions?api-version={version}"
        t.put("spec.endpoint", f"{azure}/{path}")
    elif provider == "Ollama":
        t.require(f"{root}.host")
        with_scheme = "{}" if "://" in t.text(f"{root}.host") else "http://{}"
        t.move(f"{root}.host", "spec.endpoint", with_scheme.format)


def _key(t: Translation, provider: str) -> None:
    for path in ("spec.apiKeySecret", "spec.apiKeySecretRef"):
        if not t.text(path):
            continue
        namespace, _, secret = t.text(path).rpartition("/")
        is_own = namespace in ("", t.source.full_name[0])
        t.take(path)
        why = "" if is_own else f"copy it from the namespace {namespace}"
        t.put("spec.apiKey.secretKeyRef.name", secret, why)
        usual = _KEYS.get(provider) or t.require("spec.apiKeySecretKey")
        t.put("spec.apiKey.secretKeyRef.key", t.take("spec.apiKeySecretKey") or usual)
    if "endpoint" not in t.spec:
        default_key(t, _OURS[provider], "spec.model")


def server_name(source: Source, sources: Sequence[Source]) -> str:
    """Return the name of the MCPServer that a tool server becomes, unique in its namespace."""
    namespace, name = source.full_name
    before = _SERVERS[: _SERVERS.index(source.kind)]
    is_taken = any(find(sources, kind, namespace, name) for kind in before)
    return f"{name}-remote" if is_taken else name


def _new_server(source: Source, sources: Sequence[Source]) -> Translation:
    name = server_name(source, sources)
    t = Translation(source, "MCPServer", "" if name == source.full_name[1] else name)
    t.drop("spec.description", _NO_DESCRIPTION)
    return t


def remote_server(source: Source, sources: Sequence[Source]) -> Translation:
    """Make an MCPServer of an address."""
    t = _new_server(source, sources)
    if t.take_one_of("spec.protocol", "STREAMABLE_HTTP", "SSE") == "SSE":
        t.refuse("spec.protocol", _SSE)
    _remote(t, "spec")
    move_allowed_namespaces(t)
    t.drop("spec.tls", _NO_TLS)
    return t.finish()


def tool_server(source: Source, sources: Sequence[Source]) -> Translation:
    """Make an MCPServer of a ToolServer of v1alpha1."""
    t = _new_server(source, sources)
    if t.peek("spec.config.sse") is not None:
        t.refuse("spec.config.sse", _SSE)
    t.take_one_of("spec.config.type", "stdio", "streamableHttp")
    stdio = "spec.config.stdio"
    if t.peek(stdio) is None:
        _remote(t, "spec.config.streamableHttp")
        return t.finish()
    _command(t, f"{stdio}.command", f"{stdio}.args")
    _variables(t, f"{stdio}.env")
    for item in t.items(f"{stdio}.envFrom"):
        if variable := _named_value(t, item):
            t.take(item)
            t.add("spec.config.env", variable)
    _timeout(t, f"{stdio}.readTimeoutSeconds")
    return t.finish()


def _remote(t: Translation, root: str) -> None:
    t.require(f"{root}.url")
    t.move(f"{root}.url", "spec.source.remote.url")
    for name, value in t.mapping(f"{root}.headers").items():
        path = (*place(root), "headers", name)
        add_named(t, "spec.source.remote.headers", name, value, path)
    move_headers(t, f"{root}.headersFrom", "spec.source.remote.headers")
    _timeout(t, f"{root}.timeout")
    own = "sessions and streams of MCP are kept and ended by themselves"
    t.drop_all({"sseReadTimeout": own, "terminateOnClose": own}, root)


def _timeout(t: Translation, path: str) -> None:
    if (value := t.take(path)) is not None:
        override = {"tool": "*", "timeout": value if isinstance(value, str) else f"{value}s"}
        t.add("spec.tools.overrides", override, "it bounds each call of a tool")


def move_headers(t: Translation, path: AnyPath, to: str) -> None:
    """Move headers with values of their own, or from Secrets."""
    for item in t.items(path):
        header = _named_value(t, item)
        if header and "value" in header:
            add_named(t, to, header["name"], header["value"], item)
        elif header:
            t.take(item)
            t.add(to, header)


def _named_value(t: Translation, item: AnyPath) -> dict[str, Any] | None:
    """Read a name with a value or the key of a Secret; drop what comes from elsewhere."""
    item = place(item)
    name, source = t.require((*item, "name")), (*item, "valueFrom")
    if t.peek(source) is None:
        return {"name": name, "value": t.text((*item, "value"))}
    reference = t.text((*source, "name")) or t.require((*source, "valueRef"))
    namespace, _, owner = reference.rpartition("/")
    is_own = namespace in ("", t.source.full_name[0])
    if t.require((*source, "type")) != "Secret" or not is_own:
        t.drop(item, f"values come from Secrets of the namespace: make one of {reference}")
        return None
    secret = {"name": owner, "key": t.require((*source, "key"))}
    return {"name": name, "valueFrom": {"secretKeyRef": secret}}


def move_allowed_namespaces(t: Translation) -> None:
    """Move the namespaces that may refer to the object."""
    same = {"from": "Same"}
    t.move("spec.allowedNamespaces", "spec.allowedNamespaces", lambda value: {**same, **value})


def _command(t: Translation, command: str, args: str) -> None:
    arguments = [t.require(item) for item in t.items(args)]
    value = [t.require(command), *arguments]
    t.take(command)
    t.take(args)
    t.put("spec.source.command", value, "the image must have it")


def _variables(t: Translation, path: str) -> None:
    for name, value in t.mapping(path).items():
        add_named(t, "spec.config.env", name, value, (*place(path), name))


def hosted_server(source: Source) -> Translation:
    """Make an MCPServer of kmcp's."""
    t = Translation(source, "MCPServer")
    root = "spec.deployment"
    is_http = t.take_one_of("spec.transportType", "stdio", "http") == "http"
    is_image = is_http or t.peek("spec.httpTransport") is not None
    if is_image:
        t.require(f"{root}.image")
        t.move(f"{root}.image", "spec.source.containerImage.ref")
        ports = ("spec.httpTransport.targetPort", f"{root}.port")
        port = next((path for path in ports if t.peek(path) is not None), ports[0])
        t.put("spec.config.port", t.take(port) or 3000)
        t.move("spec.httpTransport.path", "spec.config.path")
        t.move(f"{root}.args", "spec.config.arguments")
    elif t.text(f"{root}.cmd"):
        _command(t, f"{root}.cmd", f"{root}.args")
    else:
        build = "build an image FROM Diptych's with this program, and name the program as cmd"
        t.refuse(root, f"its image speaks over standard input and output: {build}")
    _variables(t, f"{root}.env")
    for item in t.items(f"{root}.secretRefs"):
        t.require((*item, "name"))
        t.add("spec.config.envFrom", {"secretRef": {"name": t.take((*item, "name"))}})
    for item in t.items(f"{root}.configMapRefs"):
        name = t.require((*item, "name"))
        t.take((*item, "name"))
        volume = {"path": f"/configmaps/{name}", "source": {"configMap": {"name": name}}}
        t.add("spec.config.storage", volume)
    t.move_all(_HOSTED, root)
    move_resources(t, f"{root}.resources", "spec.runtime.resources")
    if account := t.take(f"{root}.serviceAccountName"):
        t.put(f"{_POD}.spec.serviceAccountName", account, "the account stays yours to make")
        t.put(f"{_POD}.spec.automountServiceAccountToken", value=True)
    if is_image and t.text(f"{root}.cmd"):
        move_command(t, [t.take(f"{root}.cmd")])
    for item in t.items(f"{root}.sidecars"):
        t.add(f"{_POD}.spec.containers", t.take(item))
    _timeout(t, "spec.timeout")
    t.drop_all(_HOSTED_DROPS, root)
    plain = "servers in the cluster are asked by plain HTTP"
    t.drop_all({"httpTransport": plain, "stdioTransport": "it has no fields"})
    return t.finish()
