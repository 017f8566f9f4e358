"""The store of observed objects."""

from support.agents import agent_object, service

from diptych_operator.controller.store import Store
from diptych_operator.resources.kinds import AGENT, DEPLOYMENT, NAMESPACE, POD, SERVICE

COORDINATOR, RESEARCHER = ("team", "coordinator"), ("team", "researcher")


def versioned(content, version, uid="1"):
    metadata = {**content["metadata"], "resourceVersion": str(version), "uid": uid}
    return {**content, "metadata": metadata}


def seen(*contents):
    store = Store()
    for content in contents:
        store.put(AGENT, versioned(content, 1))
    return store


def pod(name="p", version=1, uid="1"):
    labels = {"app.kubernetes.io/instance": "coordinator"}
    return versioned(
        {"metadata": {"name": name, "namespace": "team", "labels": labels}}, version, uid
    )


def test_an_agent_concerns_itself_and_those_that_refer_to_it():
    store = seen(agent_object(agents=[{"name": "researcher"}]))
    store.observed_state(store.agent(COORDINATOR))
    assert store.put(AGENT, agent_object("researcher")) == {COORDINATOR, RESEARCHER}


def test_a_service_concerns_those_that_refer_to_it_though_it_was_never_there():
    store = seen(agent_object(tools=[{"name": "t", "serviceRef": {"name": "wiki"}}]))
    store.observed_state(store.agent(COORDINATOR))
    assert store.put(SERVICE, service("wiki")) == {COORDINATOR}
    assert store.put(SERVICE, service("other")) == set()


def test_what_is_no_longer_referred_to_concerns_nobody():
    store = seen(agent_object(tools=[{"name": "t", "serviceRef": {"name": "wiki"}}]))
    store.observed_state(store.agent(COORDINATOR))
    store.put(AGENT, versioned(agent_object(), 2))
    store.observed_state(store.agent(COORDINATOR))
    assert store.put(SERVICE, service("wiki")) == set()


def test_a_namespace_affects_its_agents_that_delegate_to_another_namespace():
    store = seen(agent_object(agents=[{"name": "lawyer", "namespace": "legal"}]))
    store.observed_state(store.agent(COORDINATOR))
    namespace = {"metadata": {"name": "team", "labels": {"a": "b"}}}
    assert store.put(NAMESPACE, namespace) == {COORDINATOR}
    assert store.observed_state(store.agent(COORDINATOR)).namespace_labels == {"team": {"a": "b"}}


def test_pods_and_children_concern_their_agent():
    store = seen(agent_object())
    assert store.put(POD, pod()) == {COORDINATOR}
    deployment = {"metadata": {"name": "coordinator", "namespace": "team"}}
    assert store.put(DEPLOYMENT, versioned(deployment, 1)) == {COORDINATOR}


def test_an_older_version_is_no_news_and_changes_nothing():
    store = seen(versioned(agent_object(), 5))
    assert store.put(AGENT, versioned(agent_object(instructions="new"), 9)) == {COORDINATOR}
    assert store.put(AGENT, versioned(agent_object(instructions="old"), 8)) == set()
    assert store.put(AGENT, versioned(agent_object(instructions="new"), 9)) == set()
    assert store.agent(COORDINATOR).spec["instructions"] == "new"


def test_a_deletion_of_the_former_object_leaves_the_new_one():
    store = seen(versioned(agent_object(), 1))
    store.put(AGENT, versioned(agent_object(), 5, uid="2"))
    store.remove(AGENT, versioned(agent_object(), 4, uid="1"))
    assert store.agent(COORDINATOR).uid == "2"
    store.remove(AGENT, versioned(agent_object(), 6, uid="2"))
    assert store.agent(COORDINATOR) is None


def test_a_list_shows_deletions_before_it_and_not_objects_newer_than_it():
    store = Store()
    for name, version in (("old", 3), ("kept", 4), ("young", 9)):
        store.put(AGENT, versioned(agent_object(name), version))
    gone = store.absent_from(AGENT, "", [agent_object("kept")], version=5)
    assert [content["metadata"]["name"] for content in gone] == ["old"]
    assert store.absent_from(AGENT, "elsewhere", [], version=5) == ()


def test_a_list_from_before_a_deletion_does_not_bring_it_back():
    store = Store()
    store.put(AGENT, versioned(agent_object(), 3))
    store.remove(AGENT, versioned(agent_object(), 6))
    assert store.put(AGENT, versioned(agent_object(), 3)) == set()
    assert store.agent(COORDINATOR) is None
    assert store.put(AGENT, versioned(agent_object(), 7, uid="2")) == {COORDINATOR}


def test_a_deletion_is_forgotten_once_a_newer_list_confirms_it():
    store = Store()
    store.remove(AGENT, versioned(agent_object(), 6))
    store.absent_from(AGENT, "", [], version=5)
    assert store._deleted[AGENT]
    store.absent_from(AGENT, "", [], version=6)
    assert not store._deleted[AGENT]


def with_readiness(content, status, version):
    conditions = [{"type": "Ready", "status": status}]
    return versioned({**content, "status": {"conditions": conditions}}, version)


def test_a_readiness_change_is_given_once_to_agents_that_refer_to_the_agent():
    store = seen(agent_object(agents=[{"name": "researcher"}]))
    store.observed_state(store.agent(COORDINATOR))
    for version, status, is_change in ((5, "False", True), (6, "False", False), (7, "True", True)):
        store.put(AGENT, with_readiness(agent_object("researcher"), status, version))
        assert store.pop_readiness_changes() == ({COORDINATOR} if is_change else set())
    store.remove(AGENT, versioned(agent_object("researcher"), 8))
    assert store.pop_readiness_changes() == {COORDINATOR}


def test_a_readiness_change_reaches_agents_that_refer_by_url():
    store = seen(agent_object(agents=[{"as": "r", "url": "http://researcher:8000"}]))
    store.observed_state(store.agent(COORDINATOR))
    store.put(AGENT, with_readiness(agent_object("researcher"), "True", 5))
    assert store.pop_readiness_changes() == {COORDINATOR}


def test_pods_and_services_that_come_or_go_are_readiness_changes():
    store = seen(agent_object(tools=[{"name": "t", "serviceRef": {"name": "wiki"}}]))
    store.observed_state(store.agent(COORDINATOR))
    for change in (store.put, store.remove):
        change(SERVICE, versioned(service("wiki"), 5))
        assert store.pop_readiness_changes() == {COORDINATOR}
    store.put(POD, pod())
    assert store.pop_readiness_changes() == {COORDINATOR}


def test_pods_come_and_go():
    store = seen(agent_object())
    store.put(POD, pod("a"))
    store.put(POD, pod("b", uid="2"))
    store.remove(POD, pod("a"))
    assert [p["metadata"]["name"] for p in store.pods(COORDINATOR)] == ["b"]


def test_only_what_is_needed_is_kept():
    store = seen(agent_object())
    fields = [{"manager": "diptych", "operation": "Apply", "fieldsV1": {"f:spec": {}}}]
    content = pod()
    content["metadata"]["managedFields"] = fields
    store.put(POD, {**content, "spec": {"containers": []}, "status": {"phase": "Running", "x": 1}})
    [kept] = store.pods(COORDINATOR)
    assert kept["status"] == {"phase": "Running"}
    assert "spec" not in kept
    assert kept["metadata"]["managedFields"] == [{"manager": "diptych", "operation": "Apply"}]


def test_agents_are_counted_by_readiness():
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    store = seen({**agent_object(), "status": ready}, agent_object("new"))
    assert store.count_by_readiness() == {"True": 1, "Unknown": 1}
