"""Files that settings name: YAML that holds a mapping.

What the platform sets for all Agents, from the file that the chart makes of its value `agents`.

podTemplate: {spec: {runtimeClassName: gvisor}}
locked: [spec.runtimeClassName, "spec.containers[agent].env[HTTPS_PROXY]"]
metadata: {allowed: ["example.com/*"]}
service: {labels: {}, annotations: {}}
serviceAccount: {labels: {}, annotations: {}}
rollout: {maxSurge: 1, maxUnavailable: 0, atOnce: 0}
policy: []
proxy: {url: "http://proxy.infra:3128", noProxy: [10.0.0.0/8]}
from: [{namespaceSelector: {}}]
expose: {hosts: ["*.example.com"], gateway: {enabled: true, from: []}, ingress: {…}}

The platform's rules for the calls of all Agents: the chart's value `agents.policy`.

    - match: {tool: "bank__*"}
      when: args.amount > 100
      do: ask
      reason: Payments over 100 need a person.

The form is that of an Agent's `spec.policy`, which the pods check again; only `repeat` is not for
the platform, which has no say in what becomes of repeated calls.

The platform's issuers and grants, from the file that the chart makes of its values.

    issuers: [{url: https://login.example.com, audience: agents, userClaim: sub}]
    grants: [{to: [{serviceAccount: {name: web, namespace: shop}}, {group: support}], may: [ask]}]

The form is that of an Agent's `spec.access`; a ServiceAccount needs its namespace.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from diptych_operator.desired.access import AccessSettings
from diptych_operator.desired.call_policy import locked_by_policy, policy_mistakes
from diptych_operator.desired.deployment import (
    PodDefaults,
    ProxySettings,
    RolloutSettings,
    pod_template,
)
from diptych_operator.desired.expose import ExposeSettings, WaySettings
from diptych_operator.desired.locked_fields import LockedField, locked_field
from diptych_operator.desired.metadata import MetadataSettings, ObjectMetadata
from diptych_operator.desired.strategic_merge import MergeError, strategic_merge
from diptych_operator.resources.agent import Agent
from diptych_operator.resources.kinds import NamespacedName


class SettingsError(ValueError):
    """A flag or variable with an invalid value; `str()` is one line."""


def read_mapping(flag: str, file: str) -> Mapping[str, Any]:
    """Read a file's mapping as JSON values; empty without a file. Raises `SettingsError`."""
    if not file:
        return {}
    try:
        content = yaml.safe_load(Path(file).read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not YAML"
        raise SettingsError(f"{flag}: {file} cannot be read: {reason}") from error
    if not isinstance(content, dict):
        raise SettingsError(f"{flag}: {file} must hold a mapping")
    return json.loads(json.dumps(content))  # type: ignore[no-any-return]


FLAG = "--agents"
_FIELDS = {
    *("podTemplate", "locked", "metadata", "service", "serviceAccount", "rollout", "policy"),
    *("expose", "from", "proxy"),
}
_PROXY = re.compile(r"https?://(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\]):[1-9]\d{0,4}/?")
_COUNT = re.compile(r"\d{1,4}|\d{1,3}%")


def pod_defaults(
    image: str,
    pull_policy: str,
    template: Mapping[str, Any],
    agents: Mapping[str, Any],
    domain: str = "cluster.local",
) -> PodDefaults:
    """Give what all pods have; `agents` is the file, whose pod template lies over `template`.

    Raises `SettingsError`.
    """
    if unknown := agents.keys() - _FIELDS:
        raise SettingsError(f"{FLAG}: unknown fields: {', '.join(sorted(unknown))}")
    own = _mapping(agents, "podTemplate")
    rollout = _mapping(agents, "rollout")
    try:
        template = strategic_merge(template, own, "podTemplate")
    except MergeError as error:
        raise SettingsError(f"{FLAG}: {error}") from error
    locked = _locked(agents.get("locked") or ())
    if agents.get("policy"):
        locked = (*locked, *locked_by_policy())
    proxy = _proxy(_mapping(agents, "proxy"), domain)
    defaults = PodDefaults(image, pull_policy, template, locked, _rollout(rollout), proxy)
    _check_template(defaults)
    return defaults


def metadata_settings(agents: Mapping[str, Any]) -> MetadataSettings:
    """Give what the platform says of labels and annotations. Raises `SettingsError`."""
    allowed = _mapping(agents, "metadata").get("allowed") or ()
    if not (isinstance(allowed, list | tuple) and all(isinstance(key, str) for key in allowed)):
        raise SettingsError(f"{FLAG}: metadata.allowed must be a list of keys or globs")
    return MetadataSettings(
        tuple(allowed),
        _object_metadata(agents, "service"),
        _object_metadata(agents, "serviceAccount"),
    )


def expose_settings(agents: Mapping[str, Any]) -> ExposeSettings:
    """Give how Agents may be exposed. Raises `SettingsError`."""
    given = _mapping(agents, "expose")
    hosts = given.get("hosts") or []
    if not (isinstance(hosts, list) and all(isinstance(one, str) and one for one in hosts)):
        raise SettingsError(f"{FLAG}: expose.hosts must be a list of host names")
    ways = [_way(given, name) for name in ("gateway", "ingress")]
    if not hosts and any(way.is_enabled for way in ways):
        raise SettingsError(f"{FLAG}: expose.hosts must say which host names Agents may take")
    return ExposeSettings(tuple(hosts), *ways)


def network_peers(given: Mapping[str, Any], field: str = "from") -> tuple[Mapping[str, Any], ...]:
    """Give the NetworkPolicy peers of a field. Raises `SettingsError`."""
    peers = given.get(field) or []
    if not (isinstance(peers, list) and all(isinstance(peer, dict) and peer for peer in peers)):
        raise SettingsError(f"{FLAG}: {field} must be a list of NetworkPolicy peers")
    return tuple(peers)


def _way(expose: Mapping[str, Any], name: str) -> WaySettings:
    given = _mapping(expose, name)
    return WaySettings(given.get("enabled") is True, network_peers(given))


def _object_metadata(agents: Mapping[str, Any], field: str) -> ObjectMetadata:
    given = _mapping(agents, field)
    found = ObjectMetadata(given.get("labels") or {}, given.get("annotations") or {})
    for part in (found.labels, found.annotations):
        is_right = isinstance(part, dict) and all(isinstance(v, str) for v in part.values())
        if not is_right:
            raise SettingsError(f"{FLAG}: {field} has labels and annotations, which are strings")
    return found


def _proxy(given: Mapping[str, Any], domain: str) -> ProxySettings | None:
    """Read the proxy; its URL stands in every Agent's Deployment, so it may hold no password."""
    url, direct = str(given.get("url") or ""), given.get("noProxy") or []
    if not (isinstance(direct, list) and all(isinstance(one, str) and one for one in direct)):
        raise SettingsError(f"{FLAG}: proxy.noProxy must be a list of hosts or blocks of addresses")
    if url and not _PROXY.fullmatch(url):
        raise SettingsError(f"{FLAG}: proxy.url must be like http://proxy.infra:3128, no password")
    return ProxySettings(url, tuple(direct), domain) if url else None


def _rollout(given: Mapping[str, Any]) -> RolloutSettings:
    found = RolloutSettings(
        given.get("maxSurge", 1), given.get("maxUnavailable", 0), given.get("atOnce", 0)
    )
    for name, count in (("maxSurge", found.max_surge), ("maxUnavailable", found.max_unavailable)):
        if not _COUNT.fullmatch(str(count)):
            raise SettingsError(f"{FLAG}: rollout.{name} must be a number or a percentage")
    if _is_none(found.max_surge) and _is_none(found.max_unavailable):
        raise SettingsError(f"{FLAG}: rollout.maxSurge and maxUnavailable must not both be 0")
    if type(found.at_once) is not int or found.at_once < 0:
        raise SettingsError(f"{FLAG}: rollout.atOnce must be a number of Agents; 0 is no limit")
    return found


def _is_none(count: int | str) -> bool:
    return str(count) in {"0", "0%"}


def _locked(paths: object) -> tuple[LockedField, ...]:
    if not isinstance(paths, list | tuple) or not all(isinstance(path, str) for path in paths):
        raise SettingsError(f"{FLAG}: locked must be a list of paths")
    try:
        return tuple(map(locked_field, paths))
    except ValueError as error:
        raise SettingsError(f"{FLAG}: locked: {error}") from None


def _mapping(agents: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    found = agents.get(field) or {}
    if not isinstance(found, dict):
        raise SettingsError(f"{FLAG}: {field} must be a mapping")
    return found


def _check_template(pods: PodDefaults) -> None:
    """Merge the operator's template into a pod once, so that a mistake ends the process at once."""
    agent = Agent("default", "check", "", 0, is_terminating=False, spec={}, status={})
    try:
        pod_template(agent, "", pods)
    except MergeError as error:
        raise SettingsError(f"--pod-template: {error}") from error


_POLICY = "--agents: policy"
_MOST = 64
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "do": ("allow", "deny", "ask"),
    "mode": ("enforce", "dryRun"),
}
_TEXTS: Mapping[str, re.Pattern[str]] = {
    "when": re.compile(r".{1,2048}", re.DOTALL),
    "reason": re.compile(r".{0,1024}", re.DOTALL),
    "expires": re.compile(r"(?=.)(\d{1,9}h)?(\d{1,9}m)?(\d{1,9}s)?(\d{1,9}ms)?", re.ASCII),
}
_MILLISECONDS: Mapping[str, int] = {"h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_PART = re.compile(r"([0-9]+)(h|ms|m|s)")
_NAME = re.compile(r"[^\x00-\x20\x7f]([^\x00-\x1f\x7f]{0,254}[^\x00-\x20\x7f])?")


def read_policy(rules: object) -> tuple[Mapping[str, Any], ...]:
    """Check the rules, expressions too. Raises `SettingsError` with the place of a mistake."""
    if not isinstance(rules, list) or len(rules) > _MOST:
        raise SettingsError(f"{_POLICY} must be a list of {_MOST} rules at most")
    for number, rule in enumerate(rules):
        if mistake := _mistake(rule):
            raise SettingsError(f"{_POLICY}[{number}]{mistake}")
    if mistakes := list(policy_mistakes(rules)):
        raise SettingsError("; ".join(f"{_POLICY}{one}" for one in mistakes))
    return tuple(rules)


def _mistake(rule: object) -> str:
    if not isinstance(rule, dict):
        return " must be a mapping"
    if unknown := rule.keys() - {"match", *_CHOICES, *_TEXTS}:
        return f" has unknown fields: {', '.join(sorted(map(str, unknown)))}"
    match rule.get("match"):
        case {"tool": str(name), **rest} | {"agent": str(name), **rest} if not rest:
            if not _NAME.fullmatch(name):
                return ".match must name a tool or an agent in one line"
        case _:
            return ".match needs exactly one of tool, agent"
    return ".do is required" if "do" not in rule else _mistake_in_fields(rule)


def _mistake_in_fields(rule: Mapping[str, Any]) -> str:
    for field, choices in _CHOICES.items():
        if rule.get(field, choices[0]) not in choices:
            return f".{field} must be {', '.join(choices[:-1])} or {choices[-1]}"
    for field, form in _TEXTS.items():
        if field in rule and not (isinstance(rule[field], str) and form.fullmatch(rule[field])):
            return f".{field} does not have its form, as in spec.policy"
    if "expires" in rule and not 0 < _milliseconds(rule["expires"]) <= _milliseconds("24h"):
        return ".expires must be more than 0s and at most 24h"
    return ""


def _milliseconds(duration: str) -> int:
    return sum(int(number) * _MILLISECONDS[unit] for number, unit in _PART.findall(duration))


_ACCESS = "--access"
_ISSUER_FIELDS = {"url", "audience", "userClaim", "groupsClaim", "jwks", "ca"}
_PEM = "-----BEGIN CERTIFICATE-----"
_RIGHTS = {"ask", "read", "approve", "manage"}


def read_access_settings(file: str, operator: NamespacedName | None) -> AccessSettings:
    """Read the file, if one is given. Raises `SettingsError`."""
    content = read_mapping(_ACCESS, file)
    try:
        return AccessSettings(
            tuple(map(_issuer, content.get("issuers") or ())),
            tuple(map(_grant, content.get("grants") or ())),
            operator,
        )
    except (AttributeError, KeyError, TypeError) as error:
        raise SettingsError(f"{_ACCESS}: {file} does not have its form: {error}") from error


def _issuer(issuer: Mapping[str, Any]) -> Mapping[str, Any]:
    url = issuer["url"]
    if not (isinstance(url, str) and url.startswith("https://")):
        raise SettingsError(f"{_ACCESS}: issuer {url!r} must start with https://")
    if unknown := issuer.keys() - _ISSUER_FIELDS:
        raise SettingsError(f"{_ACCESS}: issuer {url} has unknown fields: {', '.join(unknown)}")
    if not isinstance(issuer["audience"], str):
        raise SettingsError(f"{_ACCESS}: issuer {url} needs an audience")
    ca = issuer.get("ca", _PEM)
    if not (isinstance(ca, str) and _PEM in ca):
        raise SettingsError(f"{_ACCESS}: the ca of issuer {url} must be certificates as PEM")
    return dict(issuer)


def _grant(grant: Mapping[str, Any]) -> Mapping[str, Any]:
    if wrong := set(grant["may"]) - _RIGHTS:
        raise SettingsError(f"{_ACCESS}: unknown rights in may: {', '.join(sorted(wrong))}")
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
                f"{_ACCESS}: a grant goes to a serviceAccount or agent, with name and namespace, to "
                "a group or to a user"
            )
