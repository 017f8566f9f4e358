"""Label selectors."""

import pytest

from diptych_operator.resources.labels import selects


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ({"key": "a", "operator": "In", "values": ["1", "2"]}, True),
        ({"key": "a", "operator": "NotIn", "values": ["1"]}, False),
        ({"key": "b", "operator": "NotIn", "values": ["1"]}, True),
        ({"key": "a", "operator": "Exists"}, True),
        ({"key": "b", "operator": "DoesNotExist"}, True),
        ({"key": "a", "operator": "DoesNotExist"}, False),
    ],
)
def test_a_selector_matches_as_in_kubernetes(expression, expected):
    assert selects({"matchExpressions": [expression]}, {"a": "1"}) is expected
