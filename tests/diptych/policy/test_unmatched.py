"""Names in a manifest that nothing offers are found, and only those."""

import pytest

from diptych.core.catalog import Catalog, Peer, Tool, Unavailable
from diptych.policy.unmatched import NamedCalls, unmatched

CATALOG = Catalog(
    (Tool("bank", "pay", "", {}), Tool("bank", "balance", "", {})),
    (Peer("researcher", ""),),
    (
        Unavailable("agent", "critic", "away"),
        Unavailable("server", "mail", "away", ("send",)),
        Unavailable("tool", "bank", "changed since pinned", ("refund",)),
    ),
)
UNREACHED = Catalog(unavailable=(Unavailable("server", "shop", "not connected yet"),))


def reasons(catalog: Catalog, *named: NamedCalls) -> list[str]:
    return [found.reason for found in unmatched(named, catalog)]


@pytest.mark.parametrize(
    ("named", "reason"),
    [
        (("tool", "bank__pya"), "no tool is called bank__pya, … (did you mean bank__pay?)"),
        (("tool", "bnak__pay"), "no tool is called bnak__pay, … (did you mean bank__pay?)"),
        (("tool", "pya*"), "no tool matches pya*, …"),
        (("agent", "reseacher"), "no agent is called reseacher, … (did you mean researcher?)"),
        (("tool", "pya", "bank"), "no tool of server bank is called pya, … (did you mean pay?)"),
        (("tool", "send", "bank"), "no tool of server bank is called send, …"),
    ],
)
def test_a_name_that_nothing_offers_has_no_effect(named: tuple[str, ...], reason: str) -> None:
    (said,) = reasons(CATALOG, NamedCalls("spec", *named))  # type: ignore[arg-type]
    assert said.replace("so this has no effect", "…") == reason


@pytest.mark.parametrize(
    "named",
    [
        ("tool", "bank__pay"),
        ("tool", "b*__p?y"),
        ("tool", "send"),  # its server had it
        ("tool", "bank__refund"),  # it has changed, and cannot be used
        ("tool", "result__read"),  # the loop's own
        ("agent", "critic"),
    ],
)
def test_what_is_there_or_was_is_no_mistake(named: tuple[str, ...]) -> None:
    assert reasons(CATALOG, NamedCalls("spec", *named)) == []  # type: ignore[arg-type]


def test_nobody_knows_the_tools_of_a_server_that_was_never_reached() -> None:
    known = [NamedCalls("a", "tool", name) for name in ("shop__buy", "buy", "s*__buy", "buy*")]
    assert reasons(UNREACHED, *known, NamedCalls("a", "tool", "buy", "shop")) == []
    assert len(reasons(UNREACHED, NamedCalls("a", "tool", "bank__pay"))) == 1
