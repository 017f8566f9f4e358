"""What the `access.grants` of a manifest give, as values, and to whom they can give nothing."""

from collections.abc import Iterator

from diptych.access.grants import Grant, Grantee, Right
from diptych.manifest.access import AccessSpec, GranteeSpec
from diptych.manifest.source_location import FieldPath


def unknown_keys(access: AccessSpec) -> Iterator[tuple[FieldPath, str]]:
    """Find grants to holders of keys that there are not: each with its field, and what is wrong.

    The Kubernetes API checks the same (`manifest.access`), and cannot say which.
    """
    known = [key.name for key in access.keys]
    there = f"there is {', '.join(known)}" if known else "there is none"
    for n, grant in enumerate(access.grants):
        for m, grantee in enumerate(grant.to):
            if grantee.key is not None and grantee.key not in known:
                path = ("spec", "access", "grants", n, "to", m, "key")
                yield path, f"{grantee.key} is no name of access.keys; {there}"


def access_grants(access: AccessSpec, namespace: str) -> tuple[Grant, ...]:
    """Give what a manifest grants.

    Without grants the ServiceAccounts of the agent's own namespace and the holders of its keys may
    ask. Holders of keys that no grant names may always ask.
    """
    grants = [
        Grant(
            tuple(_grantee(one, namespace) for one in grant.to),
            frozenset(Right(right) for right in grant.may),
        )
        for grant in access.grants
    ]
    named = {one.name for grant in grants for one in grant.to if one.kind == "key"}
    others = [Grantee("key", key.name) for key in access.keys if key.name not in named]
    if not access.grants:
        others.append(Grantee("serviceaccount", f"{namespace}/*"))
    return (*grants, Grant(tuple(others), frozenset({Right.ASK})))


def _grantee(grantee: GranteeSpec, namespace: str) -> Grantee:
    if ref := grantee.service_account:
        return Grantee("serviceaccount", f"{ref.namespace or namespace}/{ref.name}")
    if ref := grantee.agent:
        return Grantee("agent", f"{ref.namespace or namespace}/{ref.name}")
    if grantee.group is not None:
        return Grantee("group", grantee.group)
    if grantee.user is not None:
        return Grantee("user", grantee.user)
    return Grantee("key", grantee.key or "")  # the model sees to it that one is given
