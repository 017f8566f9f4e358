"""What the platform sets for all Agents, from the file that the chart makes of its value `agents`.

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
"""

import re
from collections.abc import Mapping
from typing import Any

from diptych_operator.desired.call_policy import locked_by_policy
from diptych_operator.desired.deployment import PodDefaults, RolloutSettings, pod_template
from diptych_operator.desired.expose import ExposeSettings, WaySettings
from diptych_operator.desired.locked_fields import LockedField, locked_field
from diptych_operator.desired.metadata import MetadataSettings, ObjectMetadata
from diptych_operator.desired.proxy import ProxySettings
from diptych_operator.desired.strategic_merge import MergeError, strategic_merge
from diptych_operator.process.settings_file import SettingsError
from diptych_operator.resources.agent import Agent

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
