"""The operator's flags and variables."""

import pytest

from diptych_operator.desired.network_policy import DnsSettings
from diptych_operator.process.settings import SettingsError, read_settings

NEEDED = {"POD_IMAGE": "diptych:1", "POD_NAMESPACE": "system"}


def test_variables_are_enough():
    found = read_settings(
        [],
        {
            **NEEDED,
            "NAMESPACES": "a, b",
            "POD_NAME": "operator-1",
            "LEASE_NAME": "mine",
            "CLUSTER_DOMAIN": "corp.local",
            "HEALTH_PORT": "9000",
            "LOG_FORMAT": "json",
        },
    )
    assert found.namespaces == ("a", "b")
    assert found.candidate is not None
    assert (found.candidate.lease, found.candidate.identity) == (("system", "mine"), "operator-1")
    assert found.platform.network.domain == "corp.local"
    assert found.platform.network.operator_namespace == "system"
    assert found.platform.pods.image == "diptych:1"
    assert (found.health_port, found.log_format) == (9000, "json")


def test_a_flag_wins_over_its_variable():
    found = read_settings(
        ["--pod-image", "other:2", "--namespaces", ""], {**NEEDED, "NAMESPACES": "a"}
    )
    assert found.platform.pods.image == "other:2"
    assert found.namespaces == ()


@pytest.mark.parametrize("given", [["--no-leader-election"], []])
def test_a_lease_can_be_done_without(given):
    environ = {"POD_IMAGE": "x", **({} if given else {"LEADER_ELECTION": "false"})}
    assert read_settings(given, environ).candidate is None


def test_the_name_servers_are_those_of_most_clusters_unless_others_are_named():
    assert read_settings([], NEEDED).platform.network.dns == DnsSettings()
    others = {"DNS_NAMESPACES": "", "DNS_POD_LABELS": "", "DNS_BLOCKS": "10.0.0.10/32,fd00::1/128"}
    found = read_settings(["--dns-ports", "5353, 53"], {**NEEDED, **others})
    blocks = ("10.0.0.10/32", "fd00::1/128")
    assert found.platform.network.dns == DnsSettings((), {}, blocks, (5353, 53))


def template(tmp_path, text):
    file = tmp_path / "template.yaml"
    file.write_text(text)
    return str(file)


def test_a_pod_template_is_read(tmp_path):
    file = template(tmp_path, "spec: {nodeSelector: {disk: ssd}}")
    found = read_settings([], {**NEEDED, "POD_TEMPLATE": file})
    assert found.platform.pods.template == {"spec": {"nodeSelector": {"disk": "ssd"}}}


@pytest.mark.parametrize(
    ("environ", "sentence"),
    [
        ({"POD_NAMESPACE": "s"}, "--pod-image (POD_IMAGE) is required"),
        ({"POD_IMAGE": "x"}, "--namespace (POD_NAMESPACE) is required"),
        ({**NEEDED, "NAMESPACES": "A_b"}, "'A_b' is not the name of a namespace"),
        ({**NEEDED, "DNS_NAMESPACES": "A"}, "--dns-namespaces: 'A' is not the name"),
        ({**NEEDED, "DNS_POD_LABELS": "a"}, "--dns-pod-labels: 'a' is not name=value"),
        ({**NEEDED, "DNS_BLOCKS": "1.2.3"}, "'1.2.3' is no block of addresses"),
        ({**NEEDED, "DNS_PORTS": "70000"}, "--dns-ports: '70000' is not a port"),
        ({**NEEDED, "POD_TEMPLATE": "/nowhere"}, "/nowhere cannot be read: No such file"),
    ],
)
def test_a_mistake_is_one_line(environ, sentence):
    with pytest.raises(SettingsError) as caught:
        read_settings([], environ)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[a]", "must hold a mapping"),
        ("a: [", "it is not YAML"),
        ("spec: []", "the operator's pod template.spec must be a mapping"),
    ],
)
def test_a_bad_pod_template_is_told_at_the_start(tmp_path, text, sentence):
    with pytest.raises(SettingsError) as caught:
        read_settings([], {**NEEDED, "POD_TEMPLATE": template(tmp_path, text)})
    assert sentence in str(caught.value)
