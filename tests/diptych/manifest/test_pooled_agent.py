"""The documents of pooled Agents."""

import json
from pathlib import Path
from typing import Any

from support.pool import NAMESPACE, document

from diptych.access.grants import Grantee
from diptych.manifest.access import read_platform_access
from diptych.manifest.pooled_agent import pooled_config, read_pooled_agent


def config(tmp_path: Path, **spec: Any) -> Any:
    text = json.dumps(document("one", references=tmp_path, **spec)).encode()
    return pooled_config(read_pooled_agent(text, "one"), lambda: None)


def test_requests_to_peers_name_the_agent_whose_pool_the_token_proves(tmp_path: Path) -> None:
    token = tmp_path / "tokens" / f"{NAMESPACE}.two"
    token.parent.mkdir()
    token.write_text("token of the pool")
    two, foreign = config(tmp_path, agents=[{"name": "two"}, {"as": "f", "url": "http://f"}]).agents
    assert two.token() == "token of the pool"
    assert {name: read() for name, read in two.headers.items()} == {
        "X-Diptych-Agent": f"{NAMESPACE}/one"
    }
    assert foreign.headers == {}


def test_an_agent_is_reached_at_its_own_service(tmp_path: Path) -> None:
    assert config(tmp_path).public_url == f"http://one.{NAMESPACE}:8000"


def test_an_access_file_lists_pooled_callers_with_their_pool() -> None:
    callers = ["team/two", {"name": "team/three", "pool": "team/house-pool"}]
    access = read_platform_access(json.dumps({"agents": callers}))
    assert access.agents == {"team/two"}
    assert access.pooled == {("team/three", "team/house-pool")}
    [grant] = access.grants
    assert set(grant.to) == {Grantee("agent", "team/two"), Grantee("agent", "team/three")}
