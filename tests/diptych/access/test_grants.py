"""Which rights a subject has."""

import pytest

from diptych.access.grants import Grant, Grantee, Right, Subject, rights_of

ASK, READ = frozenset({Right.ASK}), frozenset({Right.READ})
ADA = Subject("user", "ada", frozenset({"support"}))


@pytest.mark.parametrize(
    ("grantee", "subject", "matches"),
    [
        (Grantee("user", "ada"), ADA, True),
        (Grantee("group", "support"), ADA, True),
        (Grantee("group", "ada"), ADA, False),
        (Grantee("key", "ada"), ADA, False),
        (Grantee("key", "ci"), Subject("key", "ci"), True),
        (Grantee("serviceaccount", "a/web"), Subject("serviceaccount", "a/web"), True),
        (Grantee("serviceaccount", "a/web"), Subject("serviceaccount", "b/web"), False),
        (Grantee("serviceaccount", "a/*"), Subject("serviceaccount", "a/web"), True),
        (Grantee("serviceaccount", "a/*"), Subject("serviceaccount", "ab/web"), False),
        (Grantee("serviceaccount", "a/web"), Subject("agent", "a/web"), False),
        (Grantee("agent", "a/*"), Subject("agent", "a/web"), True),
        (Grantee("serviceaccount", "*/*"), Subject("serviceaccount", "a/web"), True),
        (Grantee("serviceaccount", "*/*"), Subject("agent", "a/web"), False),
        (Grantee("user", "a/*"), Subject("user", "a/web"), False),
    ],
)
def test_whom_a_grant_is_for(grantee: Grantee, subject: Subject, matches: bool) -> None:
    assert grantee.matches(subject) is matches


def test_rights_of_all_grants_add_up_and_nobody_has_any_without_one() -> None:
    grants = [Grant((Grantee("user", "ada"),), ASK), Grant((Grantee("group", "support"),), READ)]
    assert rights_of(ADA, grants) == ASK | READ
    assert rights_of(Subject("user", "eve"), grants) == frozenset()
    assert rights_of(ADA, []) == frozenset()
