"""The platform's issuers and grants, as the chart writes them."""

import json

import pytest

from diptych_operator.desired.access import AccessSettings
from diptych_operator.process.settings_files import SettingsError, read_access_settings

OPERATOR = ("system", "diptych")


def read(folder, **content):
    file = folder / "access.yaml"
    file.write_text(json.dumps(content))
    return read_access_settings(str(file), OPERATOR)


def test_without_a_file_there_are_none():
    assert read_access_settings("", None) == AccessSettings()


def test_grants_get_the_form_of_the_access_file(tmp_path):
    to = [
        {"serviceAccount": {"name": "web", "namespace": "shop"}},
        {"agent": {"name": "*", "namespace": "legal"}},
        {"group": "support"},
        {"user": "ada"},
    ]
    ca = "-----BEGIN CERTIFICATE-----\n…"
    issuer = {"url": "https://login.example.com", "audience": "agents", "ca": ca}
    found = read(tmp_path, issuers=[issuer], grants=[{"to": to, "may": ["ask", "manage"]}])
    grantees = [
        {"kind": "serviceaccount", "name": "shop/web"},
        {"kind": "agent", "name": "legal/*"},
        {"kind": "group", "name": "support"},
        {"kind": "user", "name": "ada"},
    ]
    grant = {"to": grantees, "may": ["ask", "manage"]}
    assert found == AccessSettings((issuer,), (grant,), OPERATOR)


ISSUER = {"url": "https://x.example.com", "audience": "a"}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"issuers": [{**ISSUER, "url": "http://x"}]}, "https://"),
        ({"issuers": [{"url": "https://x"}]}, "audience"),
        ({"issuers": [{**ISSUER, "ca": "x"}]}, "must be certificates as PEM"),
        ({"issuers": [{**ISSUER, "keys": 1}]}, "unknown fields: keys"),
        ({"grants": [{"to": [{"user": "a"}], "may": ["status"]}]}, "unknown rights in may: status"),
        ({"grants": [{"to": [{"serviceAccount": {"name": "web"}}], "may": ["ask"]}]}, "namespace"),
        ({"grants": [{"to": [{"pod": "x"}], "may": ["ask"]}]}, "a grant goes to"),
        ({"grants": [{"may": ["ask"]}]}, "does not have its form"),
        ({"grants": ["x"]}, "does not have its form"),
    ],
)
def test_a_mistake_is_one_line_that_names_it(tmp_path, content, said):
    with pytest.raises(SettingsError, match="--access: ") as error:
        read(tmp_path, **content)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
