"""Label selectors."""

import pytest

from diptych_operator.resources.labels import agent_name_of, selector_keys, selects


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ({"key": "a", "operator": "In", "values": ["1", "2"]}, True),
        ({"key": "a", "operator": "NotIn", "values": ["1"]}, False),
        ({"key": "b", "operator": "NotIn", "values": ["1"]}, True),
        ({"key": "a", "operator": "NotIn", "values": ["2"]}, True),
        ({"key": "a", "operator": "Exists"}, True),
        ({"key": "b", "operator": "DoesNotExist"}, True),
        ({"key": "a", "operator": "DoesNotExist"}, False),
    ],
)
def test_a_selector_matches_as_in_kubernetes(expression, expected):
    assert selects({"matchExpressions": [expression]}, {"a": "1"}) is expected


def test_a_selector_matches_all_of_its_labels_and_expressions():
    selector = {
        "matchLabels": {"a": "1"},
        "matchExpressions": [{"key": "b", "operator": "Exists"}],
    }
    assert selects(selector, {"a": "1", "b": ""})
    assert not selects(selector, {"a": "2", "b": ""})
    assert not selects(selector, {"a": "1"})
    assert selector_keys(selector) == {"a", "b"}
    assert selects({}, {"a": "1"})
    assert selector_keys({}) == set()


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({"app.kubernetes.io/instance": "coordinator"}, ("team", "coordinator")),
        ({"app.kubernetes.io/name": "coordinator"}, None),
        (None, None),
    ],
)
def test_a_pod_names_its_agent_by_a_label(labels, expected):
    metadata = {"namespace": "team", "name": "p"} | ({} if labels is None else {"labels": labels})
    assert agent_name_of({"metadata": metadata}) == expected
