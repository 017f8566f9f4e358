"""The start of a process that serves."""

import errno
import gc

import pytest

from diptych.core.errors import ConfigError
from diptych.serve import process
from diptych.serve.process import ListenAddress, Sockets, freeze_loaded_objects


async def test_who_started_without_garbage_collection_has_it_when_agents_serve():
    gc.disable()
    try:
        await freeze_loaded_objects([])
        assert gc.isenabled()
    finally:
        gc.enable()


def test_a_taken_port_of_a_later_agent_names_the_setting_as_given(monkeypatch):
    def bound(host, port):
        if port == 9001:
            raise OSError(errno.EADDRINUSE, "Address already in use")

    monkeypatch.setattr(process, "_bound", bound)
    with pytest.raises(ConfigError) as caught:
        Sockets(ListenAddress(port=9000), 2)
    assert str(caught.value) == (
        "--port 9000: cannot listen on 127.0.0.1:9001 (each agent has a port): "
        "Address already in use; --port 0 takes a free port"
    )
