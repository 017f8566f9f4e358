"""What a run is offered at its start."""

from support.doubles import EPOCH, CountingClock, FunctionAgents, FunctionTools, ListeningModel

from diptych.core.catalog import Unavailable
from diptych.core.run_settings import RunSettings
from diptych.runs.backends import Backends
from diptych.runs.catalog_recorder import CatalogRecorder
from diptych.runs.definition import AgentDefinition
from diptych.stores.memory.store import MemoryStore

TOOLS_AWAY, AGENT_AWAY = Unavailable("server", "s", "refused"), Unavailable("agent", "a", "refused")


async def call(**_):
    return "done"


def recorder(**definition):
    tools = FunctionTools({"add": call}, unavailable=(TOOLS_AWAY,))
    agents = FunctionAgents({"writer": call}, (AGENT_AWAY,))
    store = MemoryStore(EPOCH)
    defined = AgentDefinition(**definition)
    return (
        CatalogRecorder(
            defined, Backends(ListeningModel("{}"), tools, agents), store, CountingClock()
        ),
        tools,
        store,
    )


async def test_a_run_is_offered_what_there_is_when_it_starts():
    catalogs, tools, store = recorder(instructions="Be brief.", settings=RunSettings(max_steps=3))
    offered = await catalogs.offered_now()
    assert offered.catalog.tools == tools.snapshot()[0]
    assert [agent.name for agent in offered.catalog.agents] == ["writer"]
    assert offered.catalog.unavailable == (TOOLS_AWAY, AGENT_AWAY)
    assert tools.retries == 1, "the next run may have them"
    assert offered.prompt.startswith("Be brief.\n\n")
    assert offered.settings == RunSettings(max_steps=3)
    assert b"Be brief." in await store.get_blob(offered.key)


async def test_a_run_is_offered_what_has_changed_since_the_last_one():
    instructions = ["Be brief."]
    catalogs, tools, _ = recorder(read_instructions=lambda: instructions[0])
    first = await catalogs.offered_now()
    tools.unavailable = ()
    second = await catalogs.offered_now()
    assert second.catalog.unavailable == (AGENT_AWAY,)
    instructions[0] = "Rhyme."
    third = await catalogs.offered_now()
    assert third.prompt.startswith("Rhyme.")
    assert len({first.key, second.key, third.key}) == 3
