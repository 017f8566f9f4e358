"""A port-forward where it cannot start; `client/test_in_cluster.py` has it at work."""

import pytest

from diptych.cli.cluster import port_forward
from diptych.core.errors import ConfigError


async def test_a_missing_shell_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port_forward.shutil, "which", lambda name: None if name == "sh" else name)
    with pytest.raises(ConfigError, match="sh is not on PATH"):
        async with port_forward.port_forward(lambda _: [], 8000):
            pass
