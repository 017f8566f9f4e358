"""How a field of the CRD is renamed without losing one: docs/upgrading.md, on a real API.

Skipped, in capitals, where Kubernetes' programs are not (`tools/cluster`).
"""

import base64
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.agents import MODEL
from support.crd_versions import NEW, OLD, converted, converter, versions_of
from support.real_api import CRDS, ROOT, ErrorResponse, install_all, kube, real_api
from support.reconciler_harness import Harness

from diptych_operator.controller.metrics import Metrics
from diptych_operator.kubernetes.client import KubernetesClient
from diptych_operator.resources.kinds import AGENT, DEPLOYMENT, NAMESPACE

pytestmark = pytest.mark.long

AGENT2 = replace(AGENT, version="v1alpha2")
CRD = yaml.safe_load((ROOT / "crds" / "diptych.dev_agents.yaml").read_text(encoding="utf-8"))
NAME = ("", CRD["metadata"]["name"])
FULL = Path(__file__).parents[1] / "diptych" / "manifest" / "full_manifest.yaml"


@pytest.fixture
def api(tmp_path):
    program = kube()
    if program is None:
        pytest.skip("there is no kube-apiserver: THE REAL API WAS NOT TRIED")
    with real_api(program, tmp_path) as found:
        install_all(found)
        found.create(NAMESPACE, {"metadata": {"name": "team"}})
        yield found


def test_a_whole_manifest_comes_back_from_the_other_version_as_it_was():
    manifest = next(yaml.safe_load_all(FULL.read_text(encoding="utf-8")))
    assert manifest["spec"]["description"]
    there = converted(manifest, NEW)
    assert "description" not in there["spec"]
    assert converted(there, OLD) == manifest


def set_versions(api: Any, webhook: Any, storage: str, *, serves_old: bool = True) -> None:
    """Do what `helm upgrade` does with the CRD, and wait until the API has taken it."""
    client = {"url": webhook.url, "caBundle": base64.b64encode(webhook.ca).decode()}
    conversion = {
        "strategy": "Webhook",
        "webhook": {"clientConfig": client, "conversionReviewVersions": ["v1"]},
    }
    versions = versions_of(CRD, storage, serves_old=serves_old)
    api.merge(CRDS, NAME, {"spec": {"conversion": conversion, "versions": versions}})
    _eventually(lambda: api.all(AGENT2, "team") is not None)


def _eventually(claim: Any) -> None:
    until = time.monotonic() + 60
    while True:
        try:
            if claim():
                return
        except ErrorResponse:
            pass
        assert time.monotonic() < until
        time.sleep(0.2)


async def test_a_field_is_renamed_by_a_new_version_and_no_agent_loses_it(api, tmp_path):
    """An operator of the old version serves Agents of both meanwhile, and rewrites none."""
    spec = {"model": MODEL, "description": "Answers."}
    stored = api.create(AGENT, {"metadata": {"name": "old", "namespace": "team"}, "spec": spec})
    async with KubernetesClient(api.connection, Metrics().count_request) as client:
        operator = Harness(api, client)
        for _ in range(3):
            await operator.reconcile(("team", "old"))
        before = _versions(api)
        with converter(tmp_path) as webhook:
            # 1. Both are served, and what is stored stays as it was.
            set_versions(api, webhook, "v1alpha1")
            read = api.get(AGENT2, ("team", "old"))
            assert (read["spec"]["summary"], "description" in read["spec"]) == ("Answers.", False)
            assert api.get(AGENT, ("team", "old"))["spec"] == stored["spec"]
            new = {"model": MODEL, "summary": "Asks."}
            api.create(AGENT2, {"metadata": {"name": "new", "namespace": "team"}, "spec": new})
            assert api.get(AGENT, ("team", "new"))["spec"]["description"] == "Asks."
            # Without its webhook nothing is lost.
            webhook.is_away = True
            with pytest.raises(ErrorResponse, match="conversion webhook"):
                api.get(AGENT2, ("team", "old"))
            assert api.get(AGENT, ("team", "old"))["spec"]["description"] == "Answers."
            webhook.is_away = False
            # 2. The new one is stored, and the operator goes on.
            set_versions(api, webhook, "v1alpha2")
            for name in ("old", "new", "old"):
                await operator.reconcile(("team", name))
            assert {k: v for k, v in _versions(api).items() if k in before} == before
            assert api.get(DEPLOYMENT, ("team", "new"))
            assert api.get(AGENT2, ("team", "new"))["status"]["observedGeneration"] == 1
            assert OLD in webhook.asked
            _write_each_once(api)
            # 3. The old one is not served any more, and then is gone.
            set_versions(api, webhook, "v1alpha2", serves_old=False)
            _eventually(lambda: _is_gone(api))
            (_, only) = versions_of(CRD, "v1alpha2")
            conversion = {"strategy": "None", "webhook": None}
            api.merge(CRDS, NAME, {"spec": {"conversion": conversion, "versions": [only]}})
    _eventually(lambda: api.all(AGENT2, "team"))
    found = {a["metadata"]["name"]: a["spec"]["summary"] for a in api.all(AGENT2, "team")}
    assert found == {"old": "Answers.", "new": "Asks."}


def _write_each_once(api: Any) -> None:
    """Write each Agent as it is, so that nothing of the old version is stored."""
    for found in api.all(AGENT, "team"):
        name = ("team", found["metadata"]["name"])
        api.ask("PUT", AGENT.path(*name), {**found, "apiVersion": OLD, "kind": "Agent"})
    assert set(api.get(CRDS, NAME)["status"]["storedVersions"]) == {"v1alpha1", "v1alpha2"}
    change = {"status": {"storedVersions": ["v1alpha2"]}}
    api.ask("PATCH", f"{CRDS.path(*NAME)}/status", change, "application/merge-patch+json")


def _is_gone(api: Any) -> bool:
    try:
        api.all(AGENT, "team")
    except ErrorResponse as error:
        return error.status == 404
    return False


def _versions(api: Any) -> dict[str, str]:
    """Give what changes with each write: the operator's objects, and the Agents' manifests."""
    found = {
        f"Deployment {content['metadata']['name']}": content["metadata"]["resourceVersion"]
        for content in api.all(DEPLOYMENT, "team")
    }
    for content in api.all(AGENT, "team"):
        found[f"Agent {content['metadata']['name']}"] = str(content["metadata"]["generation"])
    return found
