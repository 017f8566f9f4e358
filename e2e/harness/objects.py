"""What the cases apply: Agents with scripts for models, servers of our own image, probes.

All pods pass Pod Security `restricted`, which every namespace of these tests enforces.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_SERVERS = Path(__file__).parent.parent / "servers"
_TESTS = Path(__file__).parents[2] / "tests"
Entry = str | Mapping[str, Any]


def agent(name: str, script: Sequence[Entry] | None, **spec: Any) -> dict[str, Any]:
    """Make an Agent whose model is a script, if there is one."""
    spec = {"description": f"The {name} of a test.", **spec}
    if script is not None:
        variable = {"name": "DEBUG_MOCK_RESPONSES", "value": json.dumps(script)}
        spec["container"] = {"env": [variable]}
    return {
        "apiVersion": "diptych.dev/v1alpha1",
        "kind": "Agent",
        "metadata": {"name": name},
        "spec": spec,
    }


def agent_pool(name: str, **spec: Any) -> dict[str, Any]:
    metadata = {"name": name}
    head = {"apiVersion": "diptych.dev/v1alpha1", "kind": "AgentPool", "metadata": metadata}
    return {**head, "spec": spec}


def call(tool: str, **arguments: Any) -> str:
    return json.dumps({"tool": tool, "arguments": arguments})


def delegations(**tasks: str) -> str:
    """Make one reply that asks several agents, side by side."""
    return json.dumps([{"agent": name, "task": task} for name, task in tasks.items()])


def namespace(name: str, **labels: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": name,
            "labels": {
                "pod-security.kubernetes.io/enforce": "restricted",
                "diptych.dev/e2e": "true",
                **labels,
            },
        },
    }


def secret(name: str, **values: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name},
        "stringData": {key.replace("_", "-"): value for key, value in values.items()},
    }


def config_map(name: str, **values: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": values}


def role(name: str, user: str, *rules: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Make a Role of these rules, and give it to a user."""
    group = "rbac.authorization.k8s.io"
    head = {"apiVersion": f"{group}/v1", "metadata": {"name": name}}
    ref = {"apiGroup": group, "kind": "Role", "name": name}
    subjects = [{"apiGroup": group, "kind": "User", "name": user}]
    binding = {**head, "kind": "RoleBinding", "roleRef": ref, "subjects": subjects}
    return [{**head, "kind": "Role", "rules": list(rules)}, binding]


def tool_server(name: str, image: str) -> list[dict[str, Any]]:
    """Make an MCP server with the demo's tools and one that tells how it was called."""
    return _server(name, image, _python("tools.py"))


def model_server(name: str, image: str) -> list[dict[str, Any]]:
    """Make an OpenAI-compatible endpoint that answers with what it was asked with."""
    return _server(name, image, _python("model.py"))


def collector(name: str, image: str) -> list[dict[str, Any]]:
    """Make a collector of traces, whose log names each span."""
    return _server(name, image, _python("collector.py"))


def refusing_server(name: str, image: str) -> list[dict[str, Any]]:
    """Make an HTTP server that refuses every key."""
    source = (
        "from http.server import BaseHTTPRequestHandler, HTTPServer\n"
        "class Refusal(BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        self.send_response(401)\n"
        "        self.send_header('content-length', '0')\n"
        "        self.end_headers()\n"
        "    do_POST = do_GET\n"
        "HTTPServer(('', 8000), Refusal).serve_forever()\n"
    )
    return _server(name, image, ["python", "-c", source])


def redis(name: str, password: str = "") -> list[dict[str, Any]]:
    """Make a Redis that keeps nothing on disk, and its Service."""
    command = ["redis-server", "--save", "", "--protected-mode", "no"]
    command += ["--requirepass", password] if password else []
    pod = _pod(name, "redis:7", command)
    pod["spec"]["securityContext"]["runAsUser"] = 999
    pod["spec"]["containers"][0] |= {
        "ports": [{"containerPort": 6379}],
        "readinessProbe": {"tcpSocket": {"port": 6379}, "periodSeconds": 1},
    }
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": pod["spec"]},
        },
    }
    return [deployment, _service(name, 6379)]


def gone_webhook(namespace: str) -> dict[str, Any]:
    """A webhook that must be asked about a namespace's Deployments, and that nobody serves."""
    rule = {
        "apiGroups": ["apps"],
        "apiVersions": ["v1"],
        "operations": ["UPDATE"],
        "resources": ["deployments"],
    }
    hook = {
        "name": "gone.example.com",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Fail",
        "clientConfig": {"service": {"namespace": namespace, "name": "gone", "port": 443}},
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "rules": [rule],
    }
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": namespace},
        "webhooks": [hook],
    }


def probe(image: str, name: str = "probe") -> dict[str, Any]:
    """Make a pod from which a test asks: it does nothing by itself."""
    return _pod(name, image, ["sleep", "3600"])


def tls_pages(name: str, image: str, tls: str, pages: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Make an HTTPS server of JSON pages by path; the Secret `tls` has key and certificate."""
    source = (
        "import http.server, json, ssl\n"
        f"PAGES = json.loads({json.dumps(pages)!r})\n"
        "class Pages(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        body = json.dumps(PAGES[self.path]).encode()\n"
        "        self.send_response(200)\n"
        "        self.send_header('content-length', str(len(body)))\n"
        "        self.end_headers()\n"
        "        self.wfile.write(body)\n"
        "server = http.server.ThreadingHTTPServer(('', 8000), Pages)\n"
        "context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)\n"
        "context.load_cert_chain('/tls/server.pem')\n"
        "server.socket = context.wrap_socket(server.socket, server_side=True)\n"
        "server.serve_forever()\n"
    )
    pod, service = _server(name, image, ["python", "-c", source])
    _mount(pod, "/tls", {"secret": {"secretName": tls}})
    return [pod, service]


def sign_in_server(name: str, image: str, tls: str, url: str) -> list[dict[str, Any]]:
    """Make an authorization server, and an MCP server at `/mcp` that takes its tokens only."""
    module = "support/authorization_server.py"
    files = {
        "main.py": (_SERVERS / "sign_in.py").read_text(),
        "module.py": (_TESTS / module).read_text(),
    }
    pod, service = _server(name, image, ["python", "/src/main.py", url])
    paths = {"main.py": "main.py", "module.py": module}
    items = [{"key": key, "path": path} for key, path in paths.items()]
    _mount(pod, "/tls", {"secret": {"secretName": tls}})
    _mount(pod, "/src", {"configMap": {"name": name, "items": items}})
    return [{**config_map(name), "data": files}, pod, service]


def _python(file: str) -> list[str]:
    return ["python", "-c", (_SERVERS / file).read_text()]


def _mount(pod: dict[str, Any], path: str, source: Mapping[str, Any]) -> None:
    spec = pod["spec"]
    name = path.strip("/")
    spec.setdefault("volumes", []).append({"name": name, **source})
    mounts = spec["containers"][0].setdefault("volumeMounts", [])
    mounts.append({"name": name, "mountPath": path})


def _server(name: str, image: str, command: Sequence[str]) -> list[dict[str, Any]]:
    pod = _pod(name, image, command)
    pod["spec"]["containers"][0] |= {
        "ports": [{"containerPort": 8000}],
        "readinessProbe": {"tcpSocket": {"port": 8000}, "periodSeconds": 1},
    }
    return [pod, _service(name, 8000)]


def _service(name: str, port: int) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": {"app": name}, "ports": [{"port": port}]},
    }


def _pod(name: str, image: str, command: Sequence[str]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": "main",
                    "image": image,
                    "command": list(command),
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]},
                    },
                }
            ],
        },
    }
