"""The settings of a run as JSON, as they are kept with its catalog.

Budget, prices and hooks are left out where there are none, so that runs without them are readable
by versions that know of neither.

Not here: the catalog (`catalog_json`), what the settings mean (`events.RunSettings`).
"""

from collections.abc import Mapping
from dataclasses import asdict
from decimal import Decimal
from typing import Any

from diptych.loop.budget import Budget, Prices, decimal_text, decode_budget, encode_budget
from diptych.loop.events import RunSettings
from diptych.loop.messages import JSON

_BEFORE: Mapping[str, Any] = {"reply_rules": 1, "queue_mode": "all"}
"""The settings of a run whose record has no such field: of version 0.1, and before queues."""


def encode_settings(settings: RunSettings) -> dict[str, Any]:
    """Give settings as JSON."""
    terms = asdict(settings)
    del terms["budget"], terms["prices"]
    if not settings.hooks:
        del terms["hooks"]
    return terms | budget_terms(settings)


def budget_terms(settings: RunSettings) -> dict[str, JSON]:
    """Give budget and prices as JSON; nothing where there are none."""
    terms: dict[str, JSON] = {}
    if settings.budget:
        terms["budget"] = encode_budget(settings.budget)
    if prices := settings.prices:
        terms["prices"] = [decimal_text(prices.input), decimal_text(prices.output)]
    return terms


def read_prices(stored: Mapping[str, Any]) -> Prices | None:
    """Read the prices of `budget_terms` back."""
    return Prices(*map(Decimal, stored["prices"])) if "prices" in stored else None


def decode_settings(stored: Mapping[str, Any]) -> RunSettings:
    """Read settings back."""
    terms = {**_BEFORE, **stored}
    terms["hooks"] = tuple(terms.get("hooks", ()))
    terms["budget"] = decode_budget(terms["budget"]) if "budget" in terms else Budget()
    return RunSettings(**{**terms, "prices": read_prices(terms)})
