"""Labels and annotations of what an Agent is made of."""

from dataclasses import replace

import pytest
from support.agents import PLATFORM, agent, observed

from diptych_operator.desired.access import TokenIssuer
from diptych_operator.desired.children import desired_children
from diptych_operator.desired.metadata import MetadataSettings, ObjectMetadata
from diptych_operator.resources.owner import ManifestError

OWN = {"labels": {"team": "blue"}, "annotations": {"eks.amazonaws.com/role-arn": "arn:1"}}
ALLOWED = MetadataSettings(("team", "eks.amazonaws.com/*"))


def made(settings=ALLOWED, **spec):
    state = replace(observed(), issuer=TokenIssuer("https://cluster.example", ()))
    return desired_children(agent(**spec), state, replace(PLATFORM, metadata=settings)).to_apply


def test_what_an_agent_gives_is_on_all_its_objects_and_pods():
    objects = made(metadata=OWN, replicas=2)
    template = objects[-1]["spec"]["template"]
    assert len(objects) == 7
    for content in (*objects, template):
        assert content["metadata"]["labels"]["team"] == "blue"
        assert content["metadata"]["labels"]["app.kubernetes.io/instance"] == "coordinator"
        annotations = content["metadata"]["annotations"]
        assert annotations["eks.amazonaws.com/role-arn"] == "arn:1"


def test_other_metadata_is_another_config_map_as_none_is_ever_changed():
    [plain, labelled] = [made(**spec)[0] for spec in ({}, {"metadata": OWN})]
    assert plain["data"] == labelled["data"]
    assert plain["metadata"]["name"] != labelled["metadata"]["name"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (MetadataSettings(), "these keys: none"),
        (MetadataSettings(("team",)), "spec.metadata.annotations[eks.amazonaws.com/role-arn] is"),
        (MetadataSettings(("eks.*",)), "spec.metadata.labels[team] is not allowed"),
    ],
)
def test_a_key_that_the_platform_does_not_let_agents_set_is_named(settings, said):
    with pytest.raises(ManifestError) as error:
        made(settings, metadata=OWN)
    assert error.value.reason == "MetadataNotAllowed"
    assert said in str(error.value)


def test_the_operators_own_labels_are_the_strongest():
    key = "app.kubernetes.io/instance"
    settings = MetadataSettings(("*",), ObjectMetadata({key: "platform"}))
    for content in made(settings, metadata={"labels": {key: "evil"}}):
        assert content["metadata"]["labels"][key] == "coordinator"


def test_services_and_service_accounts_have_what_the_platform_gives_them():
    settings = MetadataSettings(
        ("*",),
        services=ObjectMetadata({"mesh": "on"}, {"a": "platform", "b": "platform"}),
        service_accounts=ObjectMetadata(annotations={"iam": "role"}),
    )
    objects = {one["kind"]: one for one in made(settings, metadata={"annotations": {"a": "own"}})}
    service = objects["Service"]["metadata"]
    assert service["labels"]["mesh"] == "on"
    assert (service["annotations"]["a"], service["annotations"]["b"]) == ("own", "platform")
    assert objects["ServiceAccount"]["metadata"]["annotations"]["iam"] == "role"
    assert "iam" not in objects["Deployment"]["metadata"]["annotations"]
