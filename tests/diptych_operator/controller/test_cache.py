"""The store of observed objects."""

from support.agents import agent, agent_object, service

from diptych_operator.controller.cache import ObjectCache
from diptych_operator.resources.kinds import AGENT, POD, SERVICE, ObjectKey

COORDINATOR = ("team", "coordinator")
KEY = ObjectKey(AGENT, *COORDINATOR)


def versioned(content, version, uid="1"):
    metadata = {**content["metadata"], "resourceVersion": str(version), "uid": uid}
    return {**content, "metadata": metadata}


def seen(*contents):
    cache = ObjectCache()
    for content in contents:
        cache.put(AGENT, versioned(content, 1))
    return cache


def pod(name="p", version=1, uid="1"):
    labels = {"app.kubernetes.io/instance": "coordinator"}
    return versioned(
        {"metadata": {"name": name, "namespace": "team", "labels": labels}}, version, uid
    )


def test_a_service_concerns_those_that_refer_to_it_though_it_was_never_there():
    cache = seen(agent_object(tools=[{"name": "t", "serviceRef": {"name": "wiki"}}]))
    cache.observe_and_track(cache.agent(COORDINATOR))
    assert cache.put(SERVICE, service("wiki")) == {KEY}
    assert cache.put(SERVICE, service("other")) == set()


def test_what_is_no_longer_referred_to_concerns_nobody():
    cache = seen(agent_object(tools=[{"name": "t", "serviceRef": {"name": "wiki"}}]))
    cache.observe_and_track(cache.agent(COORDINATOR))
    cache.put(AGENT, versioned(agent_object(), 2))
    cache.observe_and_track(cache.agent(COORDINATOR))
    assert cache.put(SERVICE, service("wiki")) == set()


def test_an_older_version_is_no_news_and_changes_nothing():
    cache = seen(versioned(agent_object(), 5))
    assert cache.put(AGENT, versioned(agent_object(instructions="new"), 9)) == {KEY}
    assert cache.put(AGENT, versioned(agent_object(instructions="old"), 8)) == set()
    assert cache.put(AGENT, versioned(agent_object(instructions="new"), 9)) == set()
    assert cache.agent(COORDINATOR).spec["instructions"] == "new"


def test_a_deletion_of_the_former_object_leaves_the_new_one():
    cache = seen(versioned(agent_object(), 1))
    cache.put(AGENT, versioned(agent_object(), 5, uid="2"))
    cache.remove(AGENT, versioned(agent_object(), 4, uid="1"))
    assert cache.agent(COORDINATOR).uid == "2"
    cache.remove(AGENT, versioned(agent_object(), 6, uid="2"))
    assert cache.agent(COORDINATOR) is None


def test_a_list_shows_deletions_before_it_and_not_objects_newer_than_it():
    cache = ObjectCache()
    for name, version in (("old", 3), ("kept", 4), ("young", 9)):
        cache.put(AGENT, versioned(agent_object(name), version))
    assert cache.remove_absent(AGENT, "", [agent_object("kept")], version=5) == {
        ObjectKey(AGENT, "team", "old")
    }
    assert cache.remove_absent(AGENT, "elsewhere", [], version=5) == set()
    assert set(cache.agent_names()) == {("team", "kept"), ("team", "young")}


def test_a_list_from_before_a_deletion_does_not_bring_it_back():
    cache = ObjectCache()
    cache.put(AGENT, versioned(agent_object(), 3))
    cache.remove(AGENT, versioned(agent_object(), 6))
    assert cache.put(AGENT, versioned(agent_object(), 3)) == set()
    assert cache.agent(COORDINATOR) is None
    assert cache.put(AGENT, versioned(agent_object(), 7, uid="2")) == {KEY}


def test_only_what_is_needed_is_kept():
    cache = seen(agent_object())
    fields = [{"manager": "diptych", "operation": "Apply", "fieldsV1": {"f:spec": {}}}]
    content = pod()
    content["metadata"]["managedFields"] = fields
    cache.put(
        POD,
        {
            **content,
            "spec": {"containers": [], "nodeName": "worker"},
            "status": {"phase": "Running", "x": 1},
        },
    )
    [kept] = cache.pods(KEY)
    assert kept["status"] == {"phase": "Running"}
    assert kept["spec"] == {"nodeName": "worker"}
    assert kept["metadata"]["managedFields"] == [{"manager": "diptych", "operation": "Apply"}]


def test_agents_are_counted_by_what_is_wrong_with_them():
    bad = {"type": "Ready", "status": "False", "reason": "ImagePullFailed"}
    good = {"type": "Degraded", "status": "False", "reason": "NothingMissing"}
    status = {"status": {"conditions": [bad, good]}}
    cache = seen({**agent_object(), **status}, {**agent_object("b"), **status}, agent_object("c"))
    assert cache.count_bad_conditions() == {("Ready", "ImagePullFailed"): 2}
    cache.remove(AGENT, versioned(agent_object("b"), 2))
    assert cache.count_bad_conditions() == {("Ready", "ImagePullFailed"): 1}


def test_an_agent_without_pods_is_counted_unless_it_wants_none():
    def status(reason: str) -> dict[str, object]:
        return {"conditions": [{"type": "Available", "status": "False", "reason": reason}]}

    cache = seen(
        {**agent_object(), "status": status("NoPodAvailable")},
        {**agent_object("b"), "status": status("ScaledToZero")},
    )
    assert cache.count_bad_conditions() == {("Available", "NoPodAvailable"): 1}


def test_a_service_that_every_agent_asks_is_observed():
    cache = ObjectCache(shared_urls=("http://proxy.infra:3128",))
    cache.put(SERVICE, versioned(service("proxy", "infra"), 1))
    assert ("infra", "proxy") in cache.observe_and_track(agent()).services
