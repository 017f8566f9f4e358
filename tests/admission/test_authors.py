"""Who writes an Agent must be allowed to get each Secret that it names, and to create pods."""

from typing import Any

import pytest
import yaml
from support.admission import PLURALS, allow, dry_create, manifest, of_kind, refusal, rule
from support.agents import MODEL
from support.real_api import ROOT, ErrorResponse, RealApi
from support.secret_places import manifest_places, pod_places, with_secret

from diptych_operator.resources.kinds import AGENT

CRDS = [yaml.safe_load(file.read_text(encoding="utf-8")) for file in (ROOT / "crds").glob("*.yaml")]

REF = {"secretKeyRef": {"name": "hidden", "key": "k"}}
HEADERS = [{"name": "a", "valueFrom": REF}]
TOOL = {"name": "t", "url": "http://t"}
CLIENT = {"clientId": "c", "issuer": "https://i"}
TRIGGER = {"name": "t", "signature": "github", "message": "body.text"}
PLACES: dict[str, tuple[str, dict[str, Any]]] = {
    "instructionsFrom.secretKeyRef": ("instructionsFrom", {"instructionsFrom": REF}),
    "model.apiKey.secretKeyRef": ("model.apiKey", {"model": {**MODEL, "apiKey": REF}}),
    "model.headers[].valueFrom.secretKeyRef": (
        "model.headers",
        {"model": {**MODEL, "headers": HEADERS}},
    ),
    "model.fallbacks[].apiKey.secretKeyRef": (
        "model.apiKey",
        {"model": {**MODEL, "fallbacks": [{**MODEL, "apiKey": REF}]}},
    ),
    "model.fallbacks[].headers[].valueFrom.secretKeyRef": (
        "model.headers",
        {"model": {**MODEL, "fallbacks": [{**MODEL, "headers": HEADERS}]}},
    ),
    "tools[].headers[].valueFrom.secretKeyRef": (
        "tools.headers",
        {"tools": [{**TOOL, "headers": HEADERS}]},
    ),
    "tools[].auth.clientSecret": (
        "tools.auth",
        {"tools": [{**TOOL, "auth": {**CLIENT, "clientSecret": REF}}]},
    ),
    "tools[].auth.privateKey.secretKeyRef": (
        "tools.auth",
        {"tools": [{**TOOL, "auth": {**CLIENT, "privateKey": REF}}]},
    ),
    "tools[].env[].valueFrom.secretKeyRef": (
        "tools.env",
        {"tools": [{"name": "t", "command": ["x"], "env": HEADERS}]},
    ),
    "sessions.redis.urlFrom.secretKeyRef": (
        "sessions.redis",
        {"sessions": {"redis": {"urlFrom": REF}}},
    ),
    "container.env[].valueFrom.secretKeyRef": ("container.env", {"container": {"env": HEADERS}}),
    "container.envFrom[].secretRef": (
        "container.envFrom",
        {"container": {"envFrom": [{"secretRef": {"name": "hidden"}}]}},
    ),
    "hooks[].headers[].valueFrom.secretKeyRef": (
        "hooks.headers",
        {"hooks": [{"at": "beforeCall", "url": "https://h.example.com", "headers": HEADERS}]},
    ),
    "hooks[].signingKey.secretKeyRef": (
        "hooks.signingKey",
        {"hooks": [{"at": "beforeCall", "url": "https://h.example.com", "signingKey": REF}]},
    ),
    "expose.tls.secretName": (
        "expose.tls",
        {
            "expose": {
                "host": "a.example.com",
                "ingress": {},
                "tls": {"secretName": "hidden"},
            }
        },
    ),
    "access.keys[].secretKeyRef": (
        "access.keys",
        {"access": {"keys": [{"name": "ci", **REF}]}},
    ),
    "access.issuers[].caFrom.secretKeyRef": (
        "access.issuers",
        {"access": {"issuers": [{"url": "https://a", "audience": "a", "caFrom": REF}]}},
    ),
    "triggers[].secret": ("triggers.secret", {"triggers": [{**TRIGGER, "secret": REF}]}),
}
"""Where an Agent's CRD has a Secret, what a refusal calls it, and a spec that names one there."""
MODEL_API = {"endpoint": "http://m"}
SERVER = {"source": {"containerImage": {"ref": "i"}}}
HIDDEN_REDIS = {"redis": {"urlFrom": REF}}
OTHER_PLACES: dict[tuple[str, str], tuple[str, dict[str, Any]]] = {
    ("ModelAPI", "apiKey.secretKeyRef"): ("apiKey", {**MODEL_API, "apiKey": REF}),
    ("ModelAPI", "headers[].valueFrom.secretKeyRef"): (
        "headers",
        {**MODEL_API, "headers": HEADERS},
    ),
    ("ModelAPI", "fallbacks[].apiKey.secretKeyRef"): (
        "apiKey",
        {**MODEL_API, "fallbacks": [{**MODEL, "apiKey": REF}]},
    ),
    ("ModelAPI", "fallbacks[].headers[].valueFrom.secretKeyRef"): (
        "headers",
        {**MODEL_API, "fallbacks": [{**MODEL, "headers": HEADERS}]},
    ),
    ("ModelAPI", "redis.urlFrom.secretKeyRef"): ("redis", {**MODEL_API, **HIDDEN_REDIS}),
    ("MCPServer", "source.remote.headers[].valueFrom.secretKeyRef"): (
        "source.remote.headers",
        {"source": {"remote": {"url": "http://t", "headers": HEADERS}}},
    ),
    ("MCPServer", "source.remote.auth.clientSecret"): (
        "source.remote.auth",
        {"source": {"remote": {"url": "http://t", "auth": {**CLIENT, "clientSecret": REF}}}},
    ),
    ("MCPServer", "source.remote.auth.privateKey.secretKeyRef"): (
        "source.remote.auth",
        {"source": {"remote": {"url": "http://t", "auth": {**CLIENT, "privateKey": REF}}}},
    ),
    ("MCPServer", "config.env[].valueFrom.secretKeyRef"): (
        "config.env",
        {**SERVER, "config": {"env": HEADERS}},
    ),
    ("MCPServer", "config.envFrom[].secretRef"): (
        "config.envFrom",
        {**SERVER, "config": {"envFrom": [{"secretRef": {"name": "hidden"}}]}},
    ),
    ("MCPServer", "config.storage[].source.secret"): (
        "config.storage",
        {
            **SERVER,
            "config": {"storage": [{"path": "/a", "source": {"secret": {"secretName": "hidden"}}}]},
        },
    ),
    ("AgentPool", "redis.urlFrom.secretKeyRef"): ("redis", HIDDEN_REDIS),
}
"""The same of the other kinds."""


@pytest.fixture(scope="module")
def author(api: RealApi) -> RealApi:
    """Who may write Agents and create pods, and get one Secret."""
    allow(
        api,
        "author",
        "team",
        *(rule("diptych.dev", plural, "create", "update", "patch") for plural in PLURALS),
        rule("diptych.dev", "agents/scale", "update", "patch"),
        rule("", "pods", "create"),
        rule("", "secrets", "get", names=("own",)),
    )
    found = api.impersonating("author")
    dry_create(found, manifest("first", "team"))
    return found


def test_every_place_of_the_crds_is_tried():
    """A new one needs a line above, and one in the chart's admission-authors.yaml."""
    known = {("Agent", place) for place in PLACES} | OTHER_PLACES.keys()
    assert {
        (crd["spec"]["names"]["kind"], place)
        for crd in CRDS
        for place in manifest_places(
            crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
        )
    } == known


@pytest.mark.parametrize("place", PLACES)
def test_a_secret_that_its_author_may_not_get_is_refused_in_a_sentence(author, place):
    called, spec = PLACES[place]
    said = refusal(author, manifest("a", "team", **spec))
    assert said.endswith(
        f"spec.{called} names Secret hidden, which you may not get in namespace team; name one "
        "that you may get, or ask for the right."
    )


@pytest.mark.parametrize("place", PLACES)
def test_a_secret_that_its_author_may_get_is_taken(author, place):
    _, spec = PLACES[place]
    own = yaml.safe_load(yaml.safe_dump(spec).replace("hidden", "own"))
    assert refusal(author, manifest("a", "team", **own)) == ""


@pytest.mark.parametrize("place", OTHER_PLACES)
def test_of_the_other_kinds_too(author, place):
    kind, _ = place
    called, spec = OTHER_PLACES[place]
    said = refusal(author, of_kind(kind, "team", **spec))
    assert f"spec.{called} names Secret hidden, which you may not get in namespace team" in said
    own = yaml.safe_load(yaml.safe_dump(spec).replace("hidden", "own"))
    assert refusal(author, of_kind(kind, "team", **own)) == ""


@pytest.mark.parametrize(
    ("kind", "called", "spec"),
    [
        ("AgentPool", "podTemplate", lambda template: {"podTemplate": template}),
        (
            "MCPServer",
            "runtime.podTemplate",
            lambda template: {**SERVER, "runtime": {"podTemplate": template}},
        ),
    ],
)
def test_a_template_of_another_kind_may_name_no_hidden_secret(author, kind, called, spec):
    for place in ("volumes[].secret.secretName", "containers[].envFrom[].secretRef.name"):
        hidden = of_kind(kind, "team", **spec({"spec": with_secret(place, "hidden")}))
        assert f"spec.{called} names Secret hidden, which" in refusal(author, hidden)
        own = of_kind(kind, "team", **spec({"spec": with_secret(place, "own")}))
        assert refusal(author, own) == ""


def test_every_place_of_a_pod_is_refused(api, author):
    """Those of the API's own description of a PodSpec, so that a new version's new ones count."""
    places = pod_places(api.ask("GET", "/openapi/v3/api/v1"))
    assert {
        "containers[].env[].valueFrom.secretKeyRef.name",
        "initContainers[].envFrom[].secretRef.name",
        "volumes[].secret.secretName",
        "volumes[].projected.sources[].secret.name",
        "volumes[].csi.nodePublishSecretRef.name",
        "imagePullSecrets[].name",
    } <= places
    for place in places:
        hidden = manifest("a", "team", podTemplate={"spec": with_secret(place, "hidden")})
        assert "podTemplate names Secret hidden, which" in refusal(author, hidden), place
        own = manifest("a", "team", podTemplate={"spec": with_secret(place, "own")})
        assert refusal(author, own) == "", place


def test_who_may_create_no_pods_may_write_no_agents(api):
    allow(api, "podless", "team", rule("diptych.dev", "agents", "create"))
    said = refusal(api.impersonating("podless"), manifest("a", "team"))
    assert "you may not create pods in namespace team; ask for the role edit there." in said


@pytest.mark.parametrize(
    ("kind", "spec", "makes_pods"),
    [
        ("ModelAPI", MODEL_API, False),
        ("ModelAPI", {**MODEL_API, "proxy": {}}, True),
        ("ModelAPI", {"hosted": {"engine": "vllm", "image": "i"}}, True),
        ("MCPServer", {"source": {"remote": {"url": "http://t"}}}, False),
        ("MCPServer", SERVER, True),
        ("MCPServer", {"source": {"python": "a = 1"}}, True),
        ("AgentPool", {}, True),
    ],
)
def test_of_the_other_kinds_only_those_that_make_pods_need_the_right(api, kind, spec, makes_pods):
    allow(api, "no-pods", "team", *(rule("diptych.dev", one, "create") for one in PLURALS))
    said = refusal(api.impersonating("no-pods"), of_kind(kind, "team", **spec))
    assert ("you may not create pods in namespace team" in said) is makes_pods
    assert bool(said) is makes_pods


def test_a_right_in_another_namespace_is_of_no_use(api, author):
    allow(api, "author", "elsewhere", rule("", "secrets", "get"))
    said = refusal(author, manifest("a", "team", **PLACES["model.apiKey.secretKeyRef"][1]))
    assert "names Secret hidden" in said


def test_a_namespace_that_the_release_does_not_serve_is_not_its_affair(api):
    allow(api, "author", "elsewhere", rule("diptych.dev", "agents", "create"))
    hidden = manifest("a", "elsewhere", **PLACES["model.apiKey.secretKeyRef"][1])
    assert refusal(api.impersonating("author"), hidden) == ""


# ---- changes


@pytest.fixture
def live(api, author):
    """An Agent that somebody else has made, with a Secret that the author may not get."""
    spec = PLACES["model.apiKey.secretKeyRef"][1]
    api.create(AGENT, manifest("live", "team", description="one", **spec))
    yield author
    api.delete(AGENT, ("team", "live"))


def test_a_change_of_the_spec_needs_the_right_for_all_that_it_names(live):
    """Another endpoint would be sent the key."""
    with pytest.raises(ErrorResponse, match="names Secret hidden"):
        live.merge(AGENT, ("team", "live"), {"spec": {"description": "two"}})


def test_labels_and_scale_need_no_right_for_secrets(api, live):
    live.merge(AGENT, ("team", "live"), {"metadata": {"labels": {"a": "b"}}})
    path = f"{AGENT.path('team', 'live')}/scale"
    live.ask("PATCH", path, {"spec": {"replicas": 0}}, "application/merge-patch+json")
    assert api.get(AGENT, ("team", "live"))["spec"]["replicas"] == 0


def test_server_side_apply_of_what_is_there_needs_no_right_for_secrets(live):
    applied = manifest("live", "team", description="one", **PLACES["model.apiKey.secretKeyRef"][1])
    path = f"{AGENT.path('team', 'live')}?fieldManager=gitops&force=true"
    live.ask("PATCH", path, applied, "application/apply-patch+yaml")
    applied["spec"]["description"] = "two"
    with pytest.raises(ErrorResponse, match="names Secret hidden"):
        live.ask("PATCH", path, applied, "application/apply-patch+yaml")


# ---- what a policy may cost


def test_24_secrets_are_checked_by_name(api):
    names = tuple(f"s{number}" for number in range(24))
    rights = (rule("", "pods", "create"), rule("", "secrets", "get", names=names))
    allow(api, "many", "team", rule("diptych.dev", "agents", "create"), *rights)
    asked = api.impersonating("many")
    assert refusal(asked, _naming(*names)) == ""
    assert "names Secret x," in refusal(asked, _naming(*names[1:], "x"))
    repeated = [names[number % 24] for number in range(128)]
    assert refusal(asked, _naming(*repeated)) == ""
    for more in ([*names, "x"], [*repeated, "s0"]):
        said = refusal(asked, _naming(*more))
        assert f"spec names Secrets at {len(more)} places. More than 24 Secrets" in said


def test_who_may_get_all_secrets_may_name_as_many_as_a_manifest_holds(api):
    allow(
        api,
        "owner",
        "team",
        rule("diptych.dev", "agents", "create"),
        rule("", "pods", "create"),
        rule("", "secrets", "get"),
    )
    names = [f"s{number}" for number in range(64 * 16)]
    assert refusal(api.impersonating("owner"), _naming(*names)) == ""


def _naming(*names: str) -> dict[str, Any]:
    """Make an Agent whose tool servers have these Secrets in their headers, 16 each."""
    headers = [
        {"name": f"h{number}", "valueFrom": {"secretKeyRef": {"name": name, "key": "k"}}}
        for number, name in enumerate(names)
    ]
    tools = [
        {**TOOL, "name": f"t{first}", "headers": headers[first : first + 16]}
        for first in range(0, len(headers), 16)
    ]
    return manifest("a", "team", tools=tools)
