"""Translates kagent's models and tool servers: ModelConfig, RemoteMCPServer, ToolServer, kmcp."""

from diptych.importer.shared import (
    NO_ADDRESS,
    add_named,
    move_command,
    move_resources,
)
from diptych.importer.translation import AnyPath, Source, Translation, place

_OURS = {
    "OpenAI": "openai",
    "AzureOpenAI": "azure",
    "Ollama": "ollama",
    "Anthropic": "anthropic",
    "Gemini": "gemini",
}
_PARAMETERS = {
    "temperature": "spec.parameters.temperature",
    "maxTokens": "spec.parameters.maxTokens",
    "maxCompletionTokens": "spec.parameters.maxTokens",
    "reasoningEffort": "spec.parameters.reasoningEffort",
}
_NO_PARAMETER = "the endpoint decides it; spec.chat.allowParameters lets callers send it"
_MODEL_DROPS = {
    "options.num_ctx": "an Agent's spec.context.maxTokens bounds the context",
    "apiFormat": "models are asked by chat completions",
    "organization": "write the header OpenAI-Organization into spec.headers",
    "baseUrl": "another protocol is spoken there",
    "tokenExchange": "put a proxy before the endpoint that exchanges tokens",
    "azureAdToken": "make a Secret of it, and name it as apiKey",
    **dict.fromkeys(("topP", "frequencyPenalty", "presencePenalty", "seed"), _NO_PARAMETER),
    "options": _NO_PARAMETER,
}
_NO_TLS = (
    "mount your CA into the pods and name it in SSL_CERT_FILE (docs/platform.md); verification "
    "cannot be switched off"
)
_NO_DESCRIPTION = "a tool server has no description; its tools have theirs"
_NO_TIMEOUT = "spec.tools.overrides bounds calls of tools"
_POD = "spec.runtime.podTemplate"
_HOSTED = {
    "replicas": "spec.runtime.replicas",
    **{part: f"{_POD}.metadata.{part}" for part in ("labels", "annotations")},
    **{part: f"{_POD}.spec.{part}" for part in ("tolerations", "affinity", "nodeSelector")},
    "imagePullSecrets": f"{_POD}.spec.imagePullSecrets",
}
_STORAGE = "write it as spec.config.storage"
_HOSTED_DROPS = {
    "image": "Diptych's image runs the command: build one FROM it that has the program",
    "port": "the server is asked at another one",
    "serviceAccountName": "the server has an account without rights; podTemplate can name yours",
    "sidecars": "write them as spec.runtime.podTemplate.spec.containers",
    **dict.fromkeys(("configMapRefs", "volumes", "volumeMounts"), _STORAGE),
    **dict.fromkeys(
        ("securityContext", "podSecurityContext"),
        "pods are restricted; spec.runtime.security sets the user",
    ),
}


def model_config(source: Source) -> Translation:
    """Make a ModelAPI with one model."""
    t = Translation(source, "ModelAPI")
    provider = t.text("spec.provider") or "OpenAI"
    if provider not in _OURS:
        t.refuse("spec.provider", f"the protocol of {provider} is not spoken here: {NO_ADDRESS}")
    root = f"spec.{provider[0].lower()}{provider[1:]}"
    t.require("spec.model")
    t.take("spec.provider")
    if provider == "OpenAI" and t.text(f"{root}.baseUrl"):
        t.move(f"{root}.baseUrl", "spec.endpoint")
    else:
        t.put("spec.provider", _OURS[provider])
    if provider == "AzureOpenAI":
        t.require(f"{root}.azureEndpoint")
        t.move(f"{root}.azureEndpoint", "spec.endpoint")
        t.drop(f"{root}.apiVersion", "Azure's v1 API has none")
    elif provider == "Ollama":
        t.require(f"{root}.host")
        with_scheme = "{}" if "://" in t.text(f"{root}.host") else "http://{}"
        t.move(f"{root}.host", "spec.endpoint", with_scheme.format)
    _key(t, provider)
    for name, value in t.mapping("spec.defaultHeaders").items():
        add_named(t, "spec.headers", name, value, ("spec", "defaultHeaders", name))
    deployment = f"{root}.azureDeployment"
    model = t.take(deployment if t.text(deployment) else "spec.model")
    t.put("spec.models", [model])
    t.put("spec.default", model)
    t.drop("spec.model", "Azure knows the deployment's name")
    t.move_all(_PARAMETERS, root)
    t.move(f"{root}.options.temperature", "spec.parameters.temperature")
    t.move(f"{root}.options.num_predict", "spec.parameters.maxTokens", int)
    t.move(f"{root}.timeout", "spec.timeouts.total", lambda value: f"{int(value)}s")
    t.drop_all(_MODEL_DROPS, root)
    t.drop_all(
        {
            "tls": _NO_TLS,
            "modelInfo": "an Agent's spec.model.inputs and actionFormat say what its model can do",
            "apiKeyPassthrough": "a caller's key is not passed on: name one as apiKey",
        }
    )
    return t.finish()


def _key(t: Translation, provider: str) -> None:
    is_azure = provider == "AzureOpenAI"
    for path in ("spec.apiKeySecret", "spec.apiKeySecretRef"):
        if not t.text(path):
            continue
        namespace, _, secret = t.text(path).rpartition("/")
        is_own = namespace in ("", t.source.full_name[0])
        t.take(path)
        why = "" if is_own else f"copy it from the namespace {namespace}"
        t.put("spec.apiKey.secretKeyRef.name", secret, why)
        usual = "AZURE_OPENAI_API_KEY" if is_azure else f"{provider.upper()}_API_KEY"
        t.put("spec.apiKey.secretKeyRef.key", t.take("spec.apiKeySecretKey") or usual)


def remote_server(source: Source) -> Translation:
    """Make an MCPServer of an address."""
    t = Translation(source, "MCPServer")
    t.drop("spec.description", _NO_DESCRIPTION)
    t.take_one_of("spec.protocol", "STREAMABLE_HTTP", "SSE")
    _remote(t, "spec")
    move_allowed_namespaces(t)
    t.drop("spec.tls", _NO_TLS)
    return t.finish()


def tool_server(source: Source) -> Translation:
    """Make an MCPServer of a ToolServer of v1alpha1."""
    t = Translation(source, "MCPServer")
    t.drop("spec.description", _NO_DESCRIPTION)
    t.take_one_of("spec.config.type", "stdio", "streamableHttp", "sse")
    stdio = "spec.config.stdio"
    if t.peek(stdio) is None:
        is_older = t.peek("spec.config.sse") is not None
        _remote(t, "spec.config.sse" if is_older else "spec.config.streamableHttp")
        return t.finish()
    _command(t, f"{stdio}.command", f"{stdio}.args")
    _variables(t, f"{stdio}.env")
    move_named(t, f"{stdio}.envFrom", "spec.config.env")
    t.drop(f"{stdio}.readTimeoutSeconds", _NO_TIMEOUT)
    return t.finish()


def _remote(t: Translation, root: str) -> None:
    t.require(f"{root}.url")
    t.move(f"{root}.url", "spec.source.remote.url")
    for name, value in t.mapping(f"{root}.headers").items():
        path = (*place(root), "headers", name)
        add_named(t, "spec.source.remote.headers", name, value, path)
    move_named(t, f"{root}.headersFrom", "spec.source.remote.headers")
    own = "sessions and streams of MCP are kept and ended by themselves"
    drops = {"timeout": _NO_TIMEOUT, "sseReadTimeout": own, "terminateOnClose": own}
    t.drop_all(drops, root)


def move_named(t: Translation, path: AnyPath, to: str) -> None:
    """Move headers or variables with values of their own, or from Secrets of the namespace."""
    for item in t.items(path):
        name, source = t.require((*item, "name")), (*item, "valueFrom")
        if t.peek(source) is None:
            add_named(t, to, name, t.text((*item, "value")), item)
            continue
        reference = t.text((*source, "name")) or t.require((*source, "valueRef"))
        namespace, _, owner = reference.rpartition("/")
        is_own = namespace in ("", t.source.full_name[0])
        if t.require((*source, "type")) != "Secret" or not is_own:
            t.drop(item, f"values come from Secrets of the namespace: make one of {reference}")
            continue
        secret = {"name": owner, "key": t.require((*source, "key"))}
        t.take(item)
        t.add(to, {"name": name, "valueFrom": {"secretKeyRef": secret}})


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
    t.move_all(_HOSTED, root)
    move_resources(t, f"{root}.resources", "spec.runtime.resources")
    if is_image and t.text(f"{root}.cmd"):
        move_command(t, [t.take(f"{root}.cmd")])
    t.drop_all(_HOSTED_DROPS, root)
    plain = "servers in the cluster are asked by plain HTTP"
    t.drop_all({"timeout": _NO_TIMEOUT, "httpTransport": plain})
    return t.finish()
