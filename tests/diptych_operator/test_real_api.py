"""What only a real Kubernetes API can tell: that it does what the operator counts on.

Skipped, in capitals, where Kubernetes' programs are not (`tools/cluster`).
"""

from dataclasses import dataclass, field

import pytest
import yaml
from support.agents import PLATFORM, agent_object
from support.real_api import ROOT, Refused, install, kube, real_api

from diptych_operator.controller.config_maps import Configs
from diptych_operator.controller.metrics import Metrics
from diptych_operator.controller.reconciler import Reconciler
from diptych_operator.controller.store import World
from diptych_operator.controller.work_queue import Due
from diptych_operator.kubernetes.client import Cluster
from diptych_operator.resources.kinds import AGENT, CONFIG_MAP, DEPLOYMENT, NAMESPACE, SERVICE
from diptych_operator.watch.resync import Listing


@pytest.fixture(scope="module")
def api(tmp_path_factory):
    program = kube()
    if program is None:
        pytest.skip("there is no kube-apiserver: THE REAL API WAS NOT TRIED")
    with real_api(program, tmp_path_factory.mktemp("api")) as found:
        crd = ROOT / "crds" / "diptych.dev_agents.yaml"
        install(found, yaml.safe_load(crd.read_text(encoding="utf-8")))
        found.create(NAMESPACE, {"metadata": {"name": "team"}})
        yield found


@dataclass
class Setting:
    """One Agent of its own name, and an operator that is told of everything before it works."""

    api: object
    cluster: Cluster
    name: tuple[str, str]
    world: World = field(default_factory=World)

    def __post_init__(self):
        self.reconciler = Reconciler(
            self.cluster, self.world, PLATFORM, lambda: "2026-11-21T12:00:00Z"
        )
        self.due = Due()

    async def reconcile(self):
        await Listing(self.cluster, self.world, Due()).refresh()
        return await self.reconciler.reconcile(self.name)

    @property
    def spec(self):
        return {kind: self.api.get(kind, self.name)["spec"] for kind in (SERVICE, DEPLOYMENT)}

    @property
    def accepted(self):
        conditions = self.api.get(AGENT, self.name)["status"]["conditions"]
        return next((c["status"], c["reason"]) for c in conditions if c["type"] == "Accepted")

    @property
    def config(self):
        [content] = [
            content
            for content in self.api.all(CONFIG_MAP, "team")
            if content["metadata"]["name"].startswith(f"{self.name[1]}-")
        ]
        return content


@pytest.fixture
async def setting(api, request):
    name = request.node.name.replace("_", "-").lower()[:50].rstrip("-")
    content = agent_object(name)
    content["metadata"] = {"name": name, "namespace": "team"}
    api.create(AGENT, content)
    async with Cluster(api.connection, Metrics()) as cluster:
        found = Setting(api, cluster, ("team", name))
        await found.reconcile()
        yield found


async def test_an_agent_is_served_and_then_nothing_is_written(setting):
    assert setting.accepted == ("True", "Accepted")
    before = setting.api.get(DEPLOYMENT, setting.name)["metadata"]["resourceVersion"]
    again = Setting(setting.api, setting.cluster, setting.name)
    writes = []
    ask = setting.cluster._ask

    async def note(method, *given, **kwargs):
        writes.append(method)
        return await ask(method, *given, **kwargs)

    setting.cluster._ask = note
    await again.reconcile()
    assert set(writes) == {"GET"}
    assert setting.api.get(DEPLOYMENT, setting.name)["metadata"]["resourceVersion"] == before


async def test_a_port_under_the_same_name_is_mended(setting):
    before = setting.spec
    ports = [{"name": "http", "port": 9999, "targetPort": 9999}]
    setting.api.merge(SERVICE, setting.name, {"spec": {"ports": ports}})
    await setting.reconcile()
    assert setting.spec == before
    assert setting.accepted == ("True", "Accepted")


async def test_a_manifest_at_fault_is_told_and_changes_nothing(setting):
    before = setting.spec
    container = {"name": "agent", "ports": [{"name": "http", "containerPort": 9000}]}
    template = {"spec": {"containers": [container]}}
    setting.api.merge(AGENT, setting.name, {"spec": {"podTemplate": template}})
    assert await setting.reconcile() == 30
    assert setting.accepted == ("False", "Refused")
    assert setting.spec == before


async def test_a_selector_that_is_another_one_is_mended(setting):
    before = setting.spec
    content = setting.api.get(DEPLOYMENT, setting.name)
    setting.api.delete(DEPLOYMENT, setting.name)
    kept = ("name", "namespace", "labels", "ownerReferences")
    content["metadata"] = {key: content["metadata"][key] for key in kept}
    content["spec"]["selector"] = {"matchLabels": {"x": "y"}}
    content["spec"]["template"]["metadata"]["labels"]["x"] = "y"
    setting.api.create(DEPLOYMENT, content)
    await setting.reconcile()
    assert setting.spec == before


async def test_a_deletion_that_is_shown_deletes_nothing_and_shows_no_content(setting):
    name = ("team", setting.config["metadata"]["name"])
    shown = await setting.cluster.metadata_of(CONFIG_MAP, name)
    assert "data" not in shown
    assert shown["metadata"]["ownerReferences"] == setting.config["metadata"]["ownerReferences"]
    assert "deletionTimestamp" not in setting.config["metadata"]
    assert await setting.cluster.metadata_of(CONFIG_MAP, ("team", "nowhere")) is None


async def test_a_config_of_somebody_else_is_told_and_left_alone(setting):
    name = ("team", setting.config["metadata"]["name"])
    setting.api.delete(CONFIG_MAP, name)
    metadata = {"namespace": name[0], "name": name[1]}
    setting.api.create(CONFIG_MAP, {"metadata": metadata, "data": {"a": "b"}})
    await Configs(setting.cluster, setting.world, setting.due).look_after(setting.name)
    await setting.reconcile()
    assert setting.accepted == ("False", "NameConflict")
    assert setting.config["data"] == {"a": "b"}


async def test_an_agent_that_breaks_the_rules_is_refused_in_words(api):
    content = agent_object("refused", replicas=2)
    content["metadata"] = {"name": "refused", "namespace": "team"}
    with pytest.raises(Refused) as caught:
        api.create(AGENT, content)
    assert caught.value.status == 422
    assert "sessions.redis" in str(caught.value)
