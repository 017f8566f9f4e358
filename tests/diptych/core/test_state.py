"""The state of a run as a value."""

from dataclasses import fields, replace

import pytest

from diptych.core.messages import Message
from diptych.core.state import Phase, Run, updated


def test_a_changed_run_is_what_replace_gives_and_the_run_before_stays():
    run = Run(nonce="n", messages=(Message("user", "hi"),))
    other = updated(run, phase=Phase.DONE, step=3)
    assert other == replace(run, phase=Phase.DONE, step=3)
    assert (run.phase, run.step) == (Phase.NEW, 0)
    assert {field.name for field in fields(Run)} == other.__dict__.keys()


def test_a_run_is_not_changed_by_a_name_that_it_has_no_field_of():
    with pytest.raises(TypeError, match="a run has no stepp"):
        updated(Run(), stepp=1)
