"""What the `access.grants` of a manifest give, as values.

Not here: what a grant gives to whom (`access.grants`), the rest of a manifest (`resolver`).
"""

from diptych.access.grants import Grant, Grantee, Right
from diptych.config.manifest.access import AccessSpec, GranteeSpec


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
