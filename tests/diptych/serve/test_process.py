"""The start of a process that serves."""

import gc

from diptych.serve.process import freeze_loaded_objects


async def test_who_started_without_garbage_collection_has_it_when_agents_serve():
    gc.disable()
    try:
        await freeze_loaded_objects([])
        assert gc.isenabled()
    finally:
        gc.enable()
