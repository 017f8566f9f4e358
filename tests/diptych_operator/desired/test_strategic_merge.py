"""Strategic merge of pod templates."""

import pytest

from diptych_operator.desired.strategic_merge import strategic_merge
from diptych_operator.resources.owner import ManifestError

BASE = {
    "labels": {"a": "1"},
    "containers": [{"name": "agent", "image": "x", "env": [{"name": "A", "value": "1"}]}],
    "tolerations": [{"key": "old"}],
}


@pytest.mark.parametrize(
    ("over", "field", "expected"),
    [
        pytest.param({"labels": {"b": "2"}}, "labels", {"a": "1", "b": "2"}, id="mappings"),
        pytest.param({"labels": {"a": "2"}}, "labels", {"a": "2"}, id="values are replaced"),
        pytest.param(
            {"containers": [{"name": "agent", "image": "y"}]},
            "containers",
            [{"name": "agent", "image": "y", "env": [{"name": "A", "value": "1"}]}],
            id="containers by name",
        ),
        pytest.param(
            {
                "containers": [
                    {"name": "agent", "env": [{"name": "B"}, {"name": "A", "value": "2"}]}
                ]
            },
            "containers",
            [
                {
                    "name": "agent",
                    "image": "x",
                    "env": [{"name": "A", "value": "2"}, {"name": "B"}],
                }
            ],
            id="lists inside lists",
        ),
        pytest.param(
            {"containers": [{"name": "side"}]},
            "containers",
            [*BASE["containers"], {"name": "side"}],
            id="a sidecar",
        ),
        pytest.param(
            {"tolerations": [{"key": "new"}]}, "tolerations", [{"key": "new"}], id="plain lists"
        ),
        pytest.param({"volumes": [{"name": "v"}]}, "volumes", [{"name": "v"}], id="new lists"),
    ],
)
def test_a_patch_is_merged(over, field, expected):
    assert strategic_merge(BASE, over, "spec")[field] == expected


@pytest.mark.parametrize(
    ("over", "sentence"),
    [
        ({"labels": ["a"]}, "spec.labels must be a mapping"),
        ({"containers": {"name": "agent"}}, "spec.containers must be a list"),
        (
            {"containers": [{"image": "y"}]},
            "spec.containers[0] needs a name, by which it is merged",
        ),
        ({"containers": ["agent"]}, "spec.containers[0] needs a name, by which it is merged"),
        (
            {"containers": [{"name": "agent", "env": [{"value": "1"}]}]},
            "spec.containers[0].env[0] needs a name, by which it is merged",
        ),
        ({"volumes": [{}]}, "spec.volumes[0] needs a name, by which it is merged"),
        ({"tolerations": "none"}, "spec.tolerations must be a list"),
    ],
)
def test_a_patch_that_does_not_fit_is_an_error_that_names_the_field(over, sentence):
    with pytest.raises(ManifestError) as caught:
        strategic_merge(BASE, over, "spec")
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("field", "key"),
    [
        ("containers", "name"),
        ("initContainers", "name"),
        ("volumes", "name"),
        ("env", "name"),
        ("imagePullSecrets", "name"),
        ("volumeMounts", "mountPath"),
        ("volumeDevices", "devicePath"),
        ("ports", "containerPort"),
        ("hostAliases", "ip"),
        ("ownerReferences", "uid"),
    ],
)
def test_keyed_lists_are_merged_as_in_kubernetes(field, key):
    base = {field: [{key: "a", "x": 1}, {key: "b", "x": 2}]}
    found = strategic_merge(base, {field: [{key: "b", "x": 3}, {key: "c"}]}, "spec")
    assert found[field] == [{key: "a", "x": 1}, {key: "b", "x": 3}, {key: "c"}]
