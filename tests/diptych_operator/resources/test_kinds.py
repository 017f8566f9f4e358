"""The API paths of kinds."""

import pytest

from diptych_operator.resources.kinds import (
    AGENT,
    APPLIED_DIGEST,
    DEPLOYMENT,
    FIELD_MANAGER,
    KINDS,
    LEASE,
    NAMESPACE,
    OVERWRITE_MANAGER,
    POD,
    kind_of,
    namespaced_name_of,
)


@pytest.mark.parametrize(
    ("kind", "place", "path"),
    [
        (POD, (), "/api/v1/pods"),
        (POD, ("", ""), "/api/v1/pods"),
        (POD, ("team",), "/api/v1/namespaces/team/pods"),
        (POD, ("team", "p"), "/api/v1/namespaces/team/pods/p"),
        (DEPLOYMENT, ("team", "d"), "/apis/apps/v1/namespaces/team/deployments/d"),
        (AGENT, ("team",), "/apis/diptych.dev/v1alpha1/namespaces/team/agents"),
        (LEASE, ("system", "l"), "/apis/coordination.k8s.io/v1/namespaces/system/leases/l"),
        (NAMESPACE, ("team",), "/api/v1/namespaces"),
        (NAMESPACE, ("", "team"), "/api/v1/namespaces/team"),
    ],
)
def test_a_kind_has_a_path(kind, place, path):
    assert kind.path(*place) == path


def test_an_object_names_its_kind_and_itself():
    assert kind_of({"kind": "Agent"}) is AGENT
    assert namespaced_name_of({"metadata": {"namespace": "team", "name": "a"}}) == ("team", "a")
    assert namespaced_name_of({"metadata": {"name": "team"}}) == ("", "team")


def test_every_kind_has_its_group_version_and_plural():
    assert {name: (kind.api_version, kind.plural) for name, kind in KINDS.items()} == {
        "Agent": ("diptych.dev/v1alpha1", "agents"),
        "ConfigMap": ("v1", "configmaps"),
        "Deployment": ("apps/v1", "deployments"),
        "Event": ("events.k8s.io/v1", "events"),
        "HTTPRoute": ("gateway.networking.k8s.io/v1", "httproutes"),
        "Ingress": ("networking.k8s.io/v1", "ingresses"),
        "Job": ("batch/v1", "jobs"),
        "Lease": ("coordination.k8s.io/v1", "leases"),
        "Namespace": ("v1", "namespaces"),
        "NetworkPolicy": ("networking.k8s.io/v1", "networkpolicies"),
        "Pod": ("v1", "pods"),
        "PodDisruptionBudget": ("policy/v1", "poddisruptionbudgets"),
        "Service": ("v1", "services"),
        "ServiceAccount": ("v1", "serviceaccounts"),
    }


def test_field_managers_and_annotations_keep_their_names():
    """Live objects carry these names: an operator with other ones would not know its own."""
    assert (FIELD_MANAGER, OVERWRITE_MANAGER) == ("diptych", "diptych-mend")
    assert APPLIED_DIGEST == "diptych.dev/applied"
