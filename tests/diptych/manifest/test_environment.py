"""The environment's form of an agent: the same agent, the same rules, other names in the lines."""

import pytest

from diptych.core.errors import ConfigError
from diptych.manifest.environment import process_settings
from diptych.manifest.loader import config_from_environment
from diptych.manifest.settings import ProcessSettings

MINIMAL = {
    "AGENT_NAME": "coordinator",
    "MODEL_API_URL": "http://127.0.0.1:11434/v1",
    "MODEL_NAME": "small",
}


def test_the_whole_form_makes_an_agent() -> None:
    config = config_from_environment(
        MINIMAL
        | {
            "AGENT_INSTRUCTIONS": "Be brief.",
            "AGENT_DESCRIPTION": "Coordinates.",
            "MODEL_API_KEY": "k1",
            "MCP_SERVERS": "calculator, web-search",
            "MCP_SERVER_calculator_URL": "http://calculator:8000/mcp",
            "MCP_SERVER_WEB_SEARCH_URL": "http://search:8000/mcp",
            "PEER_AGENTS": "fact-checker",
            "PEER_AGENT_FACT_CHECKER_CARD_URL": "http://checker:8000/.well-known/agent-card.json",
            "AGENTIC_LOOP_MAX_STEPS": "7",
            "PUBLIC_URL": "https://agents.example.com/",
        }
    )
    assert (config.name, config.description) == ("coordinator", "Coordinates.")
    assert config.definition.instructions == "Be brief."
    assert config.model is not None
    assert (config.model.name, config.model.endpoint) == ("small", "http://127.0.0.1:11434/v1")
    assert config.model.api_key is not None
    assert config.model.api_key() == "k1"
    assert {tool.name: tool.url for tool in config.tools} == {
        "calculator": "http://calculator:8000/mcp",
        "web-search": "http://search:8000/mcp",
    }
    (peer,) = config.agents
    assert (peer.name, peer.url, peer.share_context) == (
        "fact-checker",
        "http://checker:8000",
        True,
    )
    assert config.definition.settings.max_steps == 7
    assert config.public_url == "https://agents.example.com"


def test_a_blank_variable_counts_as_not_set() -> None:
    config = config_from_environment(MINIMAL | {"MODEL_API_KEY": " ", "REDIS_URL": " "})
    assert config.model is not None
    assert (config.model.api_key, config.store) == (None, None)


def test_redis_is_a_store_whose_url_is_read_at_the_moment_of_use() -> None:
    environ = MINIMAL | {"REDIS_URL": "redis://:secret@r:6379/0"}
    store = config_from_environment(environ).store
    assert store is not None
    assert (store.retention, store.prefix) == (86400, "diptych:default:coordinator")
    assert store.url() == "redis://:secret@r:6379/0"
    environ["REDIS_URL"] = "redis://:rotated@r:6379/0"
    assert store.url() == "redis://:rotated@r:6379/0"


@pytest.mark.parametrize(
    "variable",
    [
        "MCP_SERVER_web-search_URL",
        "MCP_SERVER_web_search_URL",
        "MCP_SERVER_WEB-SEARCH_URL",
        "MCP_SERVER_WEB_SEARCH_URL",
    ],
)
def test_a_servers_name_may_be_spelt_in_four_ways(variable: str) -> None:
    config = config_from_environment(
        MINIMAL | {"MCP_SERVERS": "web-search", variable: "http://search/mcp"}
    )
    assert config.tools[0].url == "http://search/mcp"


@pytest.mark.parametrize(
    ("environ", "lines"),
    [
        (
            {},
            [
                "MODEL_API_URL: is required, or MODEL_PROVIDER, such as openai",
                "MODEL_NAME: is required",
                "AGENT_NAME: is required",
            ],
        ),
        (
            MINIMAL | {"MODEL_API_URL": "", "MODEL_PROVIDER": "openai"},
            ["MODEL_API_KEY: openai needs a key; set OPENAI_API_KEY"],
        ),
        (
            MINIMAL | {"MODEL_API_URL": "models:8000"},
            ['MODEL_API_URL: must start with http:// or https:// (got "models:8000")'],
        ),
        (
            MINIMAL
            | {"MCP_SERVERS": "web-search,b", "PEER_AGENTS": "lawyer"}
            | {"MCP_SERVER_B_URL": "ftp://a"},
            [
                "MCP_SERVER_WEB_SEARCH_URL: is required, as MCP_SERVERS names web-search",
                "PEER_AGENT_LAWYER_CARD_URL: is required, as PEER_AGENTS names lawyer",
                'MCP_SERVER_B_URL: must start with http:// or https:// (got "ftp://a")',
            ],
        ),
        (
            MINIMAL | {"MCP_SERVERS": "a,a", "MCP_SERVER_A_URL": "http://a/mcp"},
            ["MCP_SERVERS: tool servers must differ; more than one is called a"],
        ),
        (
            MINIMAL | {"AGENTIC_LOOP_MAX_STEPS": "many"},
            ['AGENTIC_LOOP_MAX_STEPS: must be a whole number (got "many")'],
        ),
        (
            MINIMAL | {"AGENTIC_LOOP_MAX_STEPS": "101"},
            ["AGENTIC_LOOP_MAX_STEPS: must be 100 or less (got 101)"],
        ),
    ],
)
def test_a_mistake_names_the_variable(environ: dict[str, str], lines: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        config_from_environment(environ)
    assert list(caught.value.problems) == lines


def test_the_process_reads_its_variables() -> None:
    assert process_settings({"METRICS_PORT": ""}) == ProcessSettings()
    environ = {"PORT": "0", "LOG_LEVEL": "warn", "LOG_FORMAT": "json", "PUBLIC_URL": "http://a/"}
    environ |= {"SHUTDOWN_GRACE_SECONDS": "2.5", "METRICS_PORT": "9090"}
    read = ProcessSettings(0, "WARNING", "json", "http://a", 2.5, metrics_port=9090)
    assert process_settings(environ) == read


def test_all_mistakes_of_the_process_are_told_at_once() -> None:
    environ = {"PORT": "http", "LOG_LEVEL": "loud", "LOG_FORMAT": "xml", "PUBLIC_URL": "a.example"}
    environ |= {"SHUTDOWN_GRACE_SECONDS": "-1", "METRICS_PORT": "65536"}
    with pytest.raises(ConfigError) as caught:
        process_settings(environ)
    assert caught.value.problems == (
        "PORT: must be a number from 0 to 65535",
        "METRICS_PORT: must be a number from 0 to 65535",
        "LOG_LEVEL: must be debug, info, warning, error or critical",
        "LOG_FORMAT: must be text or json",
        "PUBLIC_URL: must start with http:// or https://",
        "SHUTDOWN_GRACE_SECONDS: must be a number of seconds from 0 to 3600",
    )
