"""The operator's flags, each of which can be given by an environment variable, too."""

import argparse
import ipaddress
import json
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from diptych_operator.controller.claims import OperatorName
from diptych_operator.controller.leader_election import Candidate
from diptych_operator.desired.children import Platform
from diptych_operator.desired.network_policy import DnsSettings, NetworkSettings
from diptych_operator.process.settings_files import (
    AgentsFile,
    SettingsError,
    read_access,
    read_mapping,
)
from diptych_operator.resources.kinds import NamespacedName

_MAX_PORT = 65535
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one operator process.

    Empty `namespaces` means that all are watched. Without a `candidate` there is no leader
    election. `identity` is the name of this replica.
    """

    platform: Platform
    namespaces: tuple[str, ...] = ()
    candidate: Candidate | None = None
    identity: str = "diptych-operator"
    health_port: int = 8081
    log_level: str = "INFO"
    log_format: str = "text"

    @property
    def name(self) -> OperatorName:
        """The operator's name, which all its replicas share."""
        identity = "/".join(self.candidate.lease) if self.candidate else self.identity
        return OperatorName(identity, version("diptych"))


def read_settings(arguments: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """Read flags and environment variables; a flag wins.

    Raises `SettingsError`; `--help` and unknown flags end the process.
    """
    given = _parser(environ).parse_args(arguments)
    namespaces = _names("--namespaces", given.namespaces)
    if not given.pod_image:
        raise SettingsError("--pod-image (POD_IMAGE) is required: the image of the agents' pods")
    if given.leader_election and not given.namespace:
        raise SettingsError(
            "--namespace (POD_NAMESPACE) is required: where the Lease lies; or give "
            "--no-leader-election"
        )
    agents = AgentsFile(read_mapping("--agents", given.agents))
    template = read_mapping("--pod-template", given.pod_template)
    domain = given.cluster_domain
    pods = agents.pods(given.pod_image, given.pod_image_pull_policy, template, domain)
    access = read_access(given.access, _account(given))
    network = NetworkSettings(
        domain,
        given.namespace or None,
        _dns(given),
        _metrics_from(given.metrics_from),
        agents.network_peers,
        tuple(issuer["url"] for issuer in access.issuers if "jwks" not in issuer),
        pods.proxy.url if pods.proxy else "",
    )
    return Settings(
        platform=Platform(pods, network, access, agents.metadata, agents.policy, agents.expose),
        namespaces=namespaces,
        candidate=Candidate((given.namespace, given.lease), given.identity)
        if given.leader_election
        else None,
        identity=given.identity,
        health_port=given.health_port,
        log_level=given.log_level,
        log_format=given.log_format,
    )


def _parser(environ: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="diptych-operator", description="Serves Agents in a Kubernetes cluster."
    )
    for flag, variable, default, text in _FLAGS:
        parser.add_argument(
            flag,
            default=_given(environ, variable, default),
            type=type(default),
            help=f"{text} [{variable}; default: {default or 'none'}]",
            choices=_CHOICES.get(flag),
        )
    parser.add_argument(
        "--leader-election",
        action=argparse.BooleanOptionalAction,
        default=environ.get("LEADER_ELECTION", "true").lower() not in {"false", "0", "no"},
        help="be active only while holding the Lease [LEADER_ELECTION]",
    )
    return parser


def _given(environ: Mapping[str, str], variable: str, default: str | int) -> str | int:
    """Return a variable's value or the default; an empty value counts only if it has a meaning."""
    value = environ.get(variable)
    return default if value is None or (not value and variable not in _MAY_BE_EMPTY) else value


def _dns(given: argparse.Namespace) -> DnsSettings:
    labels = {}
    for part in _parts(given.dns_pod_labels):
        key, equals, labels[key] = part.partition("=")
        if not (key and equals):
            raise SettingsError(f"--dns-pod-labels: {part!r} is not name=value")
    for block in _parts(given.dns_blocks):
        try:
            ipaddress.ip_network(block)
        except ValueError:
            message = f"--dns-blocks: {block!r} is no block of addresses, such as 10.0.0.10/32"
            raise SettingsError(message) from None
    for port in _parts(given.dns_ports):
        if not (port.isascii() and port.isdigit() and 0 < int(port) <= _MAX_PORT):
            raise SettingsError(f"--dns-ports: {port!r} is not a port")
    return DnsSettings(
        _names("--dns-namespaces", given.dns_namespaces),
        labels,
        _parts(given.dns_blocks),
        tuple(map(int, _parts(given.dns_ports))),
    )


def _names(flag: str, text: str) -> tuple[str, ...]:
    names = _parts(text)
    for name in names:
        if not _NAMESPACE.fullmatch(name):
            raise SettingsError(f"{flag}: {name!r} is not the name of a namespace")
    return names


def _parts(text: str) -> tuple[str, ...]:
    return tuple(filter(None, re.split(r"[,\s]+", text)))


def _account(given: argparse.Namespace) -> NamespacedName | None:
    has_account = given.namespace and given.service_account
    return (given.namespace, given.service_account) if has_account else None


def _metrics_from(text: str) -> tuple[Mapping[str, Any], ...]:
    try:
        peers = json.loads(text or "[]")
    except ValueError:
        peers = None
    if not isinstance(peers, list) or not all(isinstance(peer, dict) and peer for peer in peers):
        raise SettingsError("--metrics-from: must be a JSON list of NetworkPolicy peers")
    return tuple(peers)


_FLAGS: tuple[tuple[str, str, str | int, str], ...] = (
    ("--namespaces", "NAMESPACES", "", "namespaces to watch, by commas; all if empty"),
    ("--namespace", "POD_NAMESPACE", "", "the operator's own namespace"),
    ("--identity", "POD_NAME", socket.gethostname(), "what this replica is called in the Lease"),
    ("--lease", "LEASE_NAME", "diptych-operator", "name of the Lease"),
    ("--pod-image", "POD_IMAGE", "", "image of the agents' pods"),
    ("--pod-image-pull-policy", "POD_IMAGE_PULL_POLICY", "IfNotPresent", "when it is pulled"),
    ("--pod-template", "POD_TEMPLATE", "", "file with a pod template merged into every agent's"),
    ("--agents", "AGENTS", "", "file with what the platform sets for every agent"),
    ("--access", "ACCESS", "", "file with issuers and grants for every agent"),
    ("--service-account", "SERVICE_ACCOUNT", "", "the operator's own, to ask pods how they are"),
    ("--metrics-from", "METRICS_FROM", "", "NetworkPolicy peers that read agents' metrics; JSON"),
    ("--cluster-domain", "CLUSTER_DOMAIN", "cluster.local", "the cluster's DNS domain"),
    ("--dns-namespaces", "DNS_NAMESPACES", "kube-system", "where the name servers' pods are"),
    ("--dns-pod-labels", "DNS_POD_LABELS", "k8s-app=kube-dns", "their labels; all pods if empty"),
    ("--dns-blocks", "DNS_BLOCKS", "169.254.20.10/32", "addresses of other name servers"),
    ("--dns-ports", "DNS_PORTS", "53", "ports at which name servers listen"),
    ("--health-port", "HEALTH_PORT", 8081, "port of /healthz, /readyz and /metrics"),
    ("--log-level", "LOG_LEVEL", "INFO", "least severity that is logged"),
    ("--log-format", "LOG_FORMAT", "text", "how a line of the log looks"),
)
_MAY_BE_EMPTY = {"DNS_NAMESPACES", "DNS_POD_LABELS", "DNS_BLOCKS"}
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "--pod-image-pull-policy": ("Always", "IfNotPresent", "Never"),
    "--log-level": ("DEBUG", "INFO", "WARNING", "ERROR"),
    "--log-format": ("text", "json"),
}
