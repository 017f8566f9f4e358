"""What the watches have told so far."""

from support.agents import agent_object, service

from diptych_operator.controller.store import World
from diptych_operator.resources.kinds import AGENT, DEPLOYMENT, NAMESPACE, POD, SERVICE

COORDINATOR, RESEARCHER = ("team", "coordinator"), ("team", "researcher")


def versioned(content, version, uid="1"):
    metadata = {**content["metadata"], "resourceVersion": str(version), "uid": uid}
    return {**content, "metadata": metadata}


def seen(*contents):
    world = World()
    for content in contents:
        world.put(AGENT, versioned(content, 1))
    return world


def pod(name="p", version=1, uid="1"):
    labels = {"app.kubernetes.io/instance": "coordinator"}
    return versioned(
        {"metadata": {"name": name, "namespace": "team", "labels": labels}}, version, uid
    )


def test_an_agent_concerns_itself_and_those_that_refer_to_it():
    world = seen(agent_object(agents=[{"name": "researcher"}]))
    world.surroundings(world.agent(COORDINATOR))
    assert world.put(AGENT, agent_object("researcher")) == {COORDINATOR, RESEARCHER}


def test_a_service_concerns_those_that_refer_to_it_though_it_was_never_there():
    world = seen(agent_object(tools=[{"name": "t", "serviceRef": {"name": "wiki"}}]))
    world.surroundings(world.agent(COORDINATOR))
    assert world.put(SERVICE, service("wiki")) == {COORDINATOR}
    assert world.put(SERVICE, service("other")) == set()


def test_what_is_no_longer_referred_to_concerns_nobody():
    world = seen(agent_object(tools=[{"name": "t", "serviceRef": {"name": "wiki"}}]))
    world.surroundings(world.agent(COORDINATOR))
    world.put(AGENT, versioned(agent_object(), 2))
    world.surroundings(world.agent(COORDINATOR))
    assert world.put(SERVICE, service("wiki")) == set()


def test_a_namespace_concerns_those_that_look_out_of_it():
    world = seen(agent_object(agents=[{"name": "lawyer", "namespace": "legal"}]))
    world.surroundings(world.agent(COORDINATOR))
    namespace = {"metadata": {"name": "team", "labels": {"a": "b"}}}
    assert world.put(NAMESPACE, namespace) == {COORDINATOR}
    assert world.surroundings(world.agent(COORDINATOR)).namespaces == {"team": {"a": "b"}}


def test_pods_and_children_concern_their_agent():
    world = seen(agent_object())
    assert world.put(POD, pod()) == {COORDINATOR}
    deployment = {"metadata": {"name": "coordinator", "namespace": "team"}}
    assert world.put(DEPLOYMENT, versioned(deployment, 1)) == {COORDINATOR}


def test_an_older_version_is_no_news_and_changes_nothing():
    world = seen(versioned(agent_object(), 5))
    assert world.put(AGENT, versioned(agent_object(instructions="new"), 9)) == {COORDINATOR}
    assert world.put(AGENT, versioned(agent_object(instructions="old"), 8)) == set()
    assert world.put(AGENT, versioned(agent_object(instructions="new"), 9)) == set()
    assert world.agent(COORDINATOR).spec["instructions"] == "new"


def test_a_deletion_of_the_former_object_leaves_the_new_one():
    world = seen(versioned(agent_object(), 1))
    world.put(AGENT, versioned(agent_object(), 5, uid="2"))
    world.drop(AGENT, versioned(agent_object(), 4, uid="1"))
    assert world.agent(COORDINATOR).uid == "2"
    world.drop(AGENT, versioned(agent_object(), 6, uid="2"))
    assert world.agent(COORDINATOR) is None


def test_a_list_shows_what_was_deleted_and_not_what_is_younger_than_it():
    world = World()
    for name, version in (("old", 3), ("kept", 4), ("young", 9)):
        world.put(AGENT, versioned(agent_object(name), version))
    gone = world.missing(AGENT, "", [agent_object("kept")], version=5)
    assert [content["metadata"]["name"] for content in gone] == ["old"]
    assert world.missing(AGENT, "elsewhere", [], version=5) == ()


def test_a_list_from_before_a_deletion_does_not_bring_it_back():
    world = World()
    world.put(AGENT, versioned(agent_object(), 3))
    world.drop(AGENT, versioned(agent_object(), 6))
    assert world.put(AGENT, versioned(agent_object(), 3)) == set()
    assert world.agent(COORDINATOR) is None
    assert world.put(AGENT, versioned(agent_object(), 7, uid="2")) == {COORDINATOR}


def test_a_deletion_is_forgotten_when_a_younger_list_has_shown_it():
    world = World()
    world.drop(AGENT, versioned(agent_object(), 6))
    world.missing(AGENT, "", [], version=5)
    assert world._gone[AGENT]
    world.missing(AGENT, "", [], version=6)
    assert not world._gone[AGENT]


def with_readiness(content, status, version):
    conditions = [{"type": "Ready", "status": status}]
    return versioned({**content, "status": {"conditions": conditions}}, version)


def test_an_agent_that_gets_ready_or_unready_is_news_for_those_that_refer_to_it_once():
    world = seen(agent_object(agents=[{"name": "researcher"}]))
    world.surroundings(world.agent(COORDINATOR))
    for version, status, news in ((5, "False", True), (6, "False", False), (7, "True", True)):
        world.put(AGENT, with_readiness(agent_object("researcher"), status, version))
        assert world.take_news() == ({COORDINATOR} if news else set())
    world.drop(AGENT, versioned(agent_object("researcher"), 8))
    assert world.take_news() == {COORDINATOR}


def test_an_agent_behind_a_url_is_news_likewise():
    world = seen(agent_object(agents=[{"as": "r", "url": "http://researcher:8000"}]))
    world.surroundings(world.agent(COORDINATOR))
    world.put(AGENT, with_readiness(agent_object("researcher"), "True", 5))
    assert world.take_news() == {COORDINATOR}


def test_pods_and_services_that_come_or_go_are_news():
    world = seen(agent_object(tools=[{"name": "t", "serviceRef": {"name": "wiki"}}]))
    world.surroundings(world.agent(COORDINATOR))
    for change in (world.put, world.drop):
        change(SERVICE, versioned(service("wiki"), 5))
        assert world.take_news() == {COORDINATOR}
    world.put(POD, pod())
    assert world.take_news() == {COORDINATOR}


def test_pods_come_and_go():
    world = seen(agent_object())
    world.put(POD, pod("a"))
    world.put(POD, pod("b", uid="2"))
    world.drop(POD, pod("a"))
    assert [p["metadata"]["name"] for p in world.pods(COORDINATOR)] == ["b"]


def test_only_what_is_needed_is_kept():
    world = seen(agent_object())
    fields = [{"manager": "diptych", "operation": "Apply", "fieldsV1": {"f:spec": {}}}]
    content = pod()
    content["metadata"]["managedFields"] = fields
    world.put(POD, {**content, "spec": {"containers": []}, "status": {"phase": "Running", "x": 1}})
    [kept] = world.pods(COORDINATOR)
    assert kept["status"] == {"phase": "Running"}
    assert "spec" not in kept
    assert kept["metadata"]["managedFields"] == [{"manager": "diptych", "operation": "Apply"}]


def test_agents_are_counted_by_readiness():
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    world = seen({**agent_object(), "status": ready}, agent_object("new"))
    assert world.readiness() == {"True": 1, "Unknown": 1}
