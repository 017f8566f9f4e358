"""The platform's issuers and grants, from the file that the chart makes of its values.

    issuers: [{url: https://login.example.com, audience: agents, userClaim: sub}]
    grants: [{to: [{serviceAccount: {name: web, namespace: shop}}, {group: support}], may: [ask]}]

The form is that of an Agent's `spec.access`; a ServiceAccount needs its namespace.
"""

from collections.abc import Mapping
from typing import Any

from diptych_operator.desired.access import AccessSettings
from diptych_operator.process.settings_file import SettingsError, read_mapping
from diptych_operator.resources.kinds import NamespacedName

_FLAG = "--access"
_ISSUER_FIELDS = {"url", "audience", "userClaim", "groupsClaim", "jwks", "ca"}
_PEM = "-----BEGIN CERTIFICATE-----"
_RIGHTS = {"ask", "read", "approve", "manage"}


def read_access_settings(file: str, operator: NamespacedName | None) -> AccessSettings:
    """Read the file, if one is given. Raises `SettingsError`."""
    content = read_mapping(_FLAG, file)
    try:
        return AccessSettings(
            tuple(map(_issuer, content.get("issuers") or ())),
            tuple(map(_grant, content.get("grants") or ())),
            operator,
        )
    except (AttributeError, KeyError, TypeError) as error:
        raise SettingsError(f"{_FLAG}: {file} does not have its form: {error}") from error


def _issuer(issuer: Mapping[str, Any]) -> Mapping[str, Any]:
    url = issuer["url"]
    if not (isinstance(url, str) and url.startswith("https://")):
        raise SettingsError(f"{_FLAG}: issuer {url!r} must start with https://")
    if unknown := issuer.keys() - _ISSUER_FIELDS:
        raise SettingsError(f"{_FLAG}: issuer {url} has unknown fields: {', '.join(unknown)}")
    if not isinstance(issuer["audience"], str):
        raise SettingsError(f"{_FLAG}: issuer {url} needs an audience")
    ca = issuer.get("ca", _PEM)
    if not (isinstance(ca, str) and _PEM in ca):
        raise SettingsError(f"{_FLAG}: the ca of issuer {url} must be certificates as PEM")
    return dict(issuer)


def _grant(grant: Mapping[str, Any]) -> Mapping[str, Any]:
    if wrong := set(grant["may"]) - _RIGHTS:
        raise SettingsError(f"{_FLAG}: unknown rights in may: {', '.join(sorted(wrong))}")
    return {"to": [_grantee(one) for one in grant["to"]], "may": list(grant["may"])}


def _grantee(grantee: Mapping[str, Any]) -> Mapping[str, str]:
    match dict(grantee):
        case {"serviceAccount": {"name": str(name), "namespace": str(namespace)}}:
            return {"kind": "serviceaccount", "name": f"{namespace}/{name}"}
        case {"agent": {"name": str(name), "namespace": str(namespace)}}:
            return {"kind": "agent", "name": f"{namespace}/{name}"}
        case {"group": str(name)}:
            return {"kind": "group", "name": name}
        case {"user": str(name)}:
            return {"kind": "user", "name": name}
        case _:
            raise SettingsError(
                f"{_FLAG}: a grant goes to a serviceAccount or agent, with name and namespace, to "
                "a group or to a user"
            )
