"""All objects of one Agent, compared with a golden file that can be read from top to bottom.

A difference in a pod template or in an annotation `diptych.dev/applied` means that an update of the
operator rolls the pods or writes to every child. If it is meant, write the file anew:

    WRITE_GOLDEN=1 .venv/bin/pytest tests/diptych_operator/desired/test_golden_children.py
"""

from dataclasses import replace
from pathlib import Path

from support.agents import agent, children, observed, service
from support.golden import assert_golden

from diptych_operator.desired.access import TokenIssuer

GOLDEN = Path(__file__).parent / "golden_children.yaml"
AGENT = agent(
    replicas=2,
    instructions="You are careful, café or not.\u2028",
    model={
        "name": "gpt-5-mini",
        "endpoint": "https://models.example.com/v1",
        "apiKey": {"secretKeyRef": {"name": "models", "key": "api-key"}},
    },
    tools=[
        {"name": "wiki", "serviceRef": {"name": "wiki"}, "allow": ["find"], "timeout": "5s"},
        {"name": "docs", "serviceRef": {"name": "wiki", "path": "/docs"}},
        {"name": "search", "url": "https://search.example.com:8443/mcp"},
    ],
    agents=[
        {"name": "researcher"},
        {"name": "lawyer", "namespace": "legal", "as": "counsel", "shareContext": False},
        {"as": "outside", "url": "https://agents.example.com"},
    ],
    sessions={"redis": {"urlFrom": {"secretKeyRef": {"name": "redis", "key": "url"}}}},
    allowedNamespaces={"from": "Selector", "selector": {"matchLabels": {"team": "blue"}}},
    schedules=[
        {
            "name": "morning",
            "cron": "0 7 * * 1-5",
            "timeZone": "Europe/Berlin",
            "message": "What is new?",
            "session": "morning",
        }
    ],
    container={
        "imagePullPolicy": "Always",
        "env": [{"name": "REGION", "value": "eu-1"}],
        "envFrom": [{"configMapRef": {"name": "shared"}}],
    },
)
LAWYER = agent("lawyer", "legal", allowedNamespaces={"from": "All"})
ISSUER = TokenIssuer("https://cluster.example", ({"kid": "1"},))
STATE = replace(observed(agent("researcher"), LAWYER, service("wiki")), issuer=ISSUER)


def test_the_children_are_those_of_the_golden_file():
    objects = list(children(AGENT, STATE).to_apply)
    assert_golden(objects, GOLDEN)
