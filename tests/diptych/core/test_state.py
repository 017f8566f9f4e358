"""The state of a run as a value."""

import pytest

from diptych.core.state import Run, updated


def test_a_run_is_not_changed_by_a_name_that_it_has_no_field_of():
    with pytest.raises(TypeError, match="a run has no stepp"):
        updated(Run(), stepp=1)
