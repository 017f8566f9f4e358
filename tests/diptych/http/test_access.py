"""Who is let in, and what each caller sees: over every route, and in every protocol."""

import json
import logging
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import pytest
from support.face import HI, Face, as_, error_of, face

from diptych.access.bearer import Authenticator, Unauthorized
from diptych.access.caller import Caller
from diptych.access.grants import Grant, Grantee, Right, Subject
from diptych.access.limits import Limits
from diptych.core.messages import Message
from diptych.http.access_guard import OPEN_PATHS, AccessPolicy
from diptych.runs.request import RunRequest

CHAT = "/v1/chat/completions"
KEYS = {"ada": "key-of-ada", "bob": "key-of-bob", "auditor": "key-of-auditor", "nobody": "key-n"}
GRANTS = [
    Grant((Grantee("key", "ada"), Grantee("key", "bob")), frozenset({Right.ASK})),
    Grant((Grantee("key", "auditor"),), frozenset({Right.READ})),
    Grant((Grantee("key", "admin"),), frozenset({Right.READ, Right.MANAGE})),
]


def policy(refused: list[str] | None = None, more: Sequence[Grant] = ()) -> AccessPolicy:
    async def refresh(_: str) -> None: ...

    keys = KEYS | {"admin": "key-of-admin", "operator": "key-of-operator"}
    authenticator = Authenticator(list, {n: (lambda key=key: key) for n, key in keys.items()})
    refused = [] if refused is None else refused
    return AccessPolicy(authenticator, lambda: [*GRANTS, *more], refresh, "helper", refused.append)


async def ask(helper: Face, who: str, text: str = "hi", session: str | None = None) -> Any:
    body = {"messages": [{"role": "user", "content": text}]}
    headers = as_(who) | ({"X-Session-ID": session} if session else {})
    reply = await helper.http.post(CHAT, json=body, headers=headers)
    assert reply.status_code == 200, reply.text
    return reply


def routes(helper: Face) -> list[tuple[str, str]]:
    """Every route of the OpenAPI document, with a path that leads somewhere."""
    paths = helper.app.openapi()["paths"]
    return [
        (method.upper(), path.replace("{run_id}", "run-x").replace("{session_id}", "s"))
        for path, operations in paths.items()
        for method in operations
        if method in {"get", "post", "delete", "put", "patch"}
    ]


OLDER = [
    ("POST", "/a2a/rest/v1/message:send"),
    ("POST", "/a2a/rest/v1/message:stream"),
    ("GET", "/a2a/rest/v1/tasks/run-x"),
    ("POST", "/a2a/rest/v1/tasks/run-x:cancel"),
    ("GET", "/a2a/rest/v1/tasks/run-x:subscribe"),
    ("GET", "/a2a/rest/v1/card"),
    ("GET", "/a2a/rest/nothing"),
]
"""Paths of A2A 0.3 over REST, which the OpenAPI document does not name."""


async def test_every_route_but_the_open_ones_refuses_who_proves_nothing() -> None:
    async with face(access=policy()) as helper:
        for header in ({}, {"Authorization": "Bearer forged"}):
            documented = routes(helper)
            assert len(documented) > 10
            for method, path in [
                *documented,
                ("POST", "/a2a"),
                ("POST", "/a2a/"),
                *OLDER,
                ("GET", "/docs"),
            ]:
                body = {} if method == "GET" else {"json": HI}
                reply = await helper.http.request(method, path, headers=header, **body)
                if path in OPEN_PATHS:
                    assert reply.status_code != 401, path
                    continue
                assert reply.status_code == 401, (method, path)
                challenge = reply.headers["WWW-Authenticate"]
                assert challenge.startswith("Bearer ")
                assert ("invalid_token" in challenge) is bool(header)
                assert "diptych token helper" in str(error_of(reply, 401))
                assert "forged" not in reply.text


async def test_a_refusal_in_any_letters_is_a_valid_header(monkeypatch: pytest.MonkeyPatch) -> None:
    why = "a\\b\u2028\x7f"

    def refuse(*_: object) -> None:
        raise Unauthorized(why, "invalid_token")

    monkeypatch.setattr(Authenticator, "subject", refuse)
    async with face(access=policy()) as helper:
        reply = await helper.http.get("/v1/runs", headers=as_("ada"))
        assert why in str(error_of(reply, 401)["message"])
        challenge = reply.headers["WWW-Authenticate"]
        described = challenge.split('error_description="')[1].removesuffix(
            '", error="invalid_token"'
        )
        assert described.isascii()
        assert described.isprintable()
        assert not set('"\\') & set(described)


async def test_a_token_in_a_path_is_not_in_the_audit(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "diptych.audit")
    claims = "Q" * 300  # more than a line of the audit shows
    token = f"eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZGEi{claims}.s1gnature"
    async with face(access=policy()) as helper:
        assert (await helper.http.get(f"/v1/runs/{token}")).status_code == 401
        cancelled = await helper.http.post(f"/v1/runs/{token}/cancel", headers=as_("ada"), json={})
        assert cancelled.status_code == 404
        await helper.http.delete(f"/memory/sessions/{token}", headers=as_("ada"))
    lines = [r.getMessage() for r in caplog.records if r.name == "diptych.audit"]
    assert len(lines) >= 2
    assert not [line for line in lines if "eyJ" in line or claims in line]


async def test_who_has_no_right_is_forbidden_on_every_route() -> None:
    """Nor does the right to see the status let anybody do something else."""
    grant = Grant((Grantee("key", "operator"),), frozenset({Right.STATUS}))
    async with face(access=policy(more=[grant])) as helper:
        for method, path in routes(helper):
            body = {} if method == "GET" else {"json": HI}
            for key in (KEYS["nobody"], "key-of-operator"):
                header = {"Authorization": f"Bearer {key}"}
                reply = await helper.http.request(method, path, headers=header, **body)
                if path not in OPEN_PATHS:
                    assert reply.status_code == 403, (method, path)
                    assert "'ask'" in str(error_of(reply, 403))


async def test_a_list_before_a_foreign_run_is_one_before_an_unknown_run() -> None:
    async with face(access=policy()) as helper:
        run_id = (await ask(helper, "ada")).headers["X-Run-ID"]
        await ask(helper, "bob")
        unknown = f"{run_id[:-4]}ffff"

        async def listed(who: str, before: str) -> Any:
            return await helper.http.get(f"/v1/runs?before={before}", headers=as_(who))

        foreign, none = await listed("bob", run_id), await listed("bob", unknown)
        assert (foreign.status_code, none.status_code) == (400, 400)
        assert foreign.text == none.text
        for who in ("ada", "auditor"):
            assert (await listed(who, run_id)).json()["data"] == []


async def test_lists_show_a_caller_its_own_alone() -> None:
    async with face(access=policy()) as helper:
        for n in range(3):
            await ask(helper, "ada", f"ada {n}", f"a{n}")
            await ask(helper, "bob", f"bob {n}", f"b{n}")
        for path in ("/v1/runs", "/memory/events", "/memory/sessions", "/v1/runs?limit=2"):
            shown = (await helper.http.get(path, headers=as_("ada"))).text
            assert '"b' not in shown.replace('"bo', ""), path
            assert "bob" not in shown, path
            assert '"a' in shown, path
        sessions = (await helper.http.get("/memory/sessions", headers=as_("ada"))).json()
        assert sessions["total"] == 3


async def test_a_foreign_run_is_the_same_as_an_unknown_one() -> None:
    async with face(access=policy()) as helper:
        run_id = (await ask(helper, "ada", "hi", "s")).headers["X-Run-ID"]
        unknown = f"{run_id[:-4]}ffff"
        for method, path, body in [
            ("GET", "", None),
            ("GET", "/events", None),
            ("GET", "/tree", None),
            ("DELETE", "/queue", None),
            ("POST", "/follow-up", {"message": "more"}),
            ("POST", "/cancel", {}),
            ("POST", "/resume", {}),
            ("POST", "/steer", {"message": "more"}),
        ]:
            replies = [
                await helper.http.request(
                    method, f"/v1/runs/{one}{path}", headers=as_("bob"), json=body
                )
                for one in (run_id, unknown)
            ]
            assert [r.status_code for r in replies] == [404, 404], path
            texts = [r.text.replace(run_id, "").replace(unknown, "") for r in replies]
            assert texts[0] == texts[1]
        assert (await helper.http.get(f"/v1/runs/{run_id}", headers=as_("ada"))).json()[
            "session_id"
        ] == "s"


async def test_a_foreign_response_is_the_same_as_an_unknown_one() -> None:
    async with face(access=policy()) as helper:
        http = helper.http
        await ask(helper, "bob", "hi", "s")
        run_id = (await ask(helper, "ada", "the secret", "s")).headers["X-Run-ID"]
        unknown = f"{run_id[:-4]}ffff"
        for who in ("bob", "auditor", "admin"):  # to read it is not to go on with it
            told = []
            for one in (run_id, unknown):
                more = {"input": "hi", "previous_response_id": one}
                reply = await http.post("/v1/responses", json=more, headers=as_(who))
                assert error_of(reply, 404)["code"] == "previous_response_not_found", who
                told.append(reply.text)
            assert told[0] == told[1]
        for one in (run_id, unknown):
            item = {"type": "item_reference", "id": f"msg_{one}_0"}
            named = {"input": [item, {"role": "user", "content": "hi"}]}
            reply = await http.post("/v1/responses", json=named, headers=as_("bob"))
            assert error_of(reply, 404)["code"] == "item_not_found"
        paths = ("GET", ""), ("GET", "?stream=true"), ("GET", "/input_items"), ("POST", "/cancel")
        for method, path in paths:
            replies = [
                await http.request(method, f"/v1/responses/{one}{path}", headers=as_("bob"))
                for one in (run_id, unknown)
            ]
            assert [r.status_code for r in replies] == [404, 404], path
            assert replies[0].text == replies[1].text
        path = f"/v1/responses/{run_id}"
        assert (await http.get(path, headers=as_("ada"))).json()["conversation"] == {"id": "s"}
        assert (await http.get(path, headers=as_("auditor"))).status_code == 200
        assert "secret" in (await http.get(f"{path}/input_items", headers=as_("auditor"))).text
        assert (await http.post(f"{path}/cancel", headers=as_("auditor"))).status_code == 403
        more = {"input": "hi", "previous_response_id": run_id}
        assert (await http.post("/v1/responses", json=more, headers=as_("ada"))).status_code == 200
        started = await http.post("/v1/responses", json={"input": "x"}, headers=as_("auditor"))
        assert started.status_code == 403


async def test_who_manages_cancels_a_response_that_it_may_not_read() -> None:
    only = Grant((Grantee("key", "operator"),), frozenset({Right.MANAGE}))
    slow = {"content": "{}", "delay_ms": 5_000}
    async with face(slow, "x", access=policy(more=[only])) as helper:
        body = {"input": "the secret", "background": True}
        started = await helper.http.post("/v1/responses", json=body, headers=as_("ada"))
        path = f"/v1/responses/{started.json()['id']}/cancel"
        cancelled = await helper.http.post(path, headers=as_("operator"))
        assert (cancelled.status_code, cancelled.json()["status"]) == (200, "cancelled")
        assert cancelled.json()["output"] == []
        assert "secret" not in cancelled.text


async def test_an_idempotency_key_is_its_caller_s_own() -> None:
    async with face(access=policy()) as helper:
        runs = []
        for who in ("ada", "bob", "ada"):
            headers = as_(who) | {"Idempotency-Key": "same"}
            reply = await helper.http.post("/v1/runs", json={"input": "hi"}, headers=headers)
            runs.append(reply.json()["id"])
        assert runs[0] == runs[2] != runs[1]


async def test_a_reader_sees_all_and_changes_nothing() -> None:
    async with face(access=policy()) as helper:
        run_id = (await ask(helper, "ada", "the secret", "s")).headers["X-Run-ID"]
        get, post = helper.http.get, helper.http.post
        assert "secret" in (await get("/memory/events", headers=as_("auditor"))).text
        whole = "/memory/events?session_id=key:ada/s"
        assert "secret" in (await get(whole, headers=as_("auditor"))).text
        assert (await get(f"/v1/runs/{run_id}", headers=as_("auditor"))).status_code == 200
        listed = (await get("/memory/sessions", headers=as_("auditor"))).json()["sessions"]
        assert [(s["session_id"], s["owner"]) for s in listed] == [("s", "key:ada")]
        for reply in (
            await post(f"/v1/runs/{run_id}/cancel", headers=as_("auditor"), json={}),
            await post(f"/v1/runs/{run_id}/steer", headers=as_("auditor"), json={"message": "x"}),
            await post(CHAT, headers=as_("auditor"), json=HI),
            await helper.http.delete("/memory/sessions/key:ada/s", headers=as_("auditor")),
        ):
            assert reply.status_code == 403, reply.text


async def test_who_manages_may_delete_any_session_and_others_their_own() -> None:
    async with face(access=policy()) as helper:
        await ask(helper, "ada", "hi", "s")
        await ask(helper, "bob", "hi", "s")
        delete = helper.http.delete
        assert (await delete("/memory/sessions/s", headers=as_("bob"))).status_code == 204
        assert (await delete("/memory/sessions/key:ada/s", headers=as_("bob"))).status_code == 404
        managed = await delete("/memory/sessions/key:ada/s", headers=as_("admin"))
        assert managed.status_code == 204


@pytest.mark.parametrize("name", ["a%2Fb", "a~b?c#d"])
async def test_any_owner_is_shown_as_it_is_called_and_addressed_so(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with face(access=policy()) as helper:
        with monkeypatch.context() as patched:
            patched.setattr(Authenticator, "_key_subject", lambda *_: Subject("user", name))
            more = Grant((Grantee("user", name),), frozenset({Right.ASK}))
            patched.setattr(f"{__name__}.GRANTS", [*GRANTS, more])
            await ask(helper, "ada", "the secret", "s")
        get = helper.http.get
        [listed] = (await get("/memory/sessions", headers=as_("admin"))).json()["sessions"]
        assert (listed["owner"], listed["session_id"]) == (f"user:{name}", "s")
        whole = f"user:{name}/s"
        params: dict[str, Any] = {"session_id": whole, "limit": 1}
        page = (await get("/memory/events", params=params, headers=as_("admin"))).json()
        assert (page["total"], len(page["events"])) == (2, 1)
        params["before"] = page["next_before"]
        page = (await get("/memory/events", params=params, headers=as_("admin"))).json()
        assert page["events"][0]["content"] == "the secret"
        path = f"/memory/sessions/{quote(whole, safe='')}"
        assert (await helper.http.delete(path, headers=as_("bob"))).status_code == 404
        assert (await helper.http.delete(path, headers=as_("admin"))).status_code == 204


async def test_an_owner_whose_name_begins_as_anothers_has_limits_of_its_own() -> None:
    slow = {"content": "{}", "delay_ms": 500}
    async with face(slow, "Yes.") as helper:
        runs = helper.house.runs
        for name in ("ada/x", "ada", "ada/x/y"):
            owner = Caller(Subject("user", name)).owner
            await runs.start(RunRequest((Message("user", "hi"),), owner=owner))
        owners = [Caller(Subject("user", name)).owner for name in ("ada", "ada/x", "ad", "ada/")]
        assert [runs.unfinished_of(owner) for owner in owners] == [1, 1, 0, 0]


async def test_nobody_steers_or_resumes_a_run_of_somebody_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "diptych.audit")
    every = frozenset(Right)
    more = [
        Grant((Grantee("key", "admin"),), every),
        Grant((Grantee("key", "operator"),), every - {Right.READ}),
    ]
    slow = {"content": "{}", "delay_ms": 5_000}
    async with face(slow, "x", "Yes.", access=policy(more=more)) as helper:
        started = await helper.http.post("/v1/runs", json={"input": "hi"}, headers=as_("ada"))
        path = f"/v1/runs/{started.json()['id']}"

        async def statuses(what: str, body: Any) -> list[int]:
            return [
                (await helper.http.post(f"{path}/{what}", json=body, headers=as_(who))).status_code
                for who in ("admin", "operator", "bob", "auditor", "ada")
            ]

        for how in ("steer", "follow-up"):
            assert await statuses(how, {"message": "more"}) == [403, 404, 404, 403, 202]
        await helper.http.post(f"{path}/cancel", json={}, headers=as_("operator"))
        assert await statuses("resume", {}) == [403, 404, 404, 403, 202]
        run = (await helper.http.get(path, headers=as_("ada"))).json()
        assert run["status"] == "aborted"
    lines = [json.loads(r.message) for r in caplog.records if r.name == "diptych.audit"]
    why = [(line["what"], line["why"]) for line in lines if line["subject"] == "key:admin"]
    whose = "the session belongs to another subject"
    assert why == [(what, whose) for what in ("steer", "follow-up", "resume")]


async def test_limits_hold_for_each_caller_alone_and_say_when_to_come_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "diptych.audit")
    slow = {"content": "{}", "delay_ms": 500}
    async with face(slow, "Yes.", access=policy(), limits=Limits(runs_at_once=2)) as helper:
        replies = [
            await helper.http.post("/v1/runs", json={"input": "hi"}, headers=as_(who))
            for who in ("ada", "ada", "ada", "bob")
        ]
        assert [r.status_code for r in replies] == [202, 202, 429, 202]
        assert int(replies[2].headers["Retry-After"]) >= 1
    lines = [json.loads(r.message) for r in caplog.records if r.name == "diptych.audit"]
    assert (lines[2]["outcome"], lines[2]["why"]) == ("refused", "its limit is reached")


async def test_refusals_are_counted_and_on_the_audit_log(caplog: Any) -> None:
    refused: list[str] = []
    with caplog.at_level(logging.INFO, "diptych.audit"):
        async with face(access=policy(refused)) as helper:
            await helper.http.get("/v1/runs")
            await helper.http.get("/v1/runs", headers={"Authorization": "Bearer a-secret-token"})
    assert refused == ["no_credential", "invalid_token"]
    lines = [json.loads(record.getMessage()) for record in caplog.records]
    assert [line["outcome"] for line in lines] == ["refused", "refused"]
    assert "a-secret-token" not in caplog.text


async def test_ready_tells_its_details_to_readers_and_to_the_operator_alone() -> None:
    grant = Grant((Grantee("key", "operator"),), frozenset({Right.STATUS}))
    async with face(access=policy(more=[grant])) as helper:
        for who in ("auditor", "operator"):
            told = (await helper.http.get("/ready", headers=as_(who))).json()
            assert told["missing"] == []
            assert "notes" in told
        for headers in ({}, as_("ada"), as_("nobody-known")):
            reply = await helper.http.get("/ready", headers=headers)
            assert (reply.status_code, set(reply.json())) == (200, {"status", "agent"})
            refused = reply.headers.get("WWW-Authenticate")  # the operator reads why
            assert bool(refused) == (headers == as_("nobody-known"))
        assert 'error_description="' in (refused or "")


async def test_what_callers_may_and_may_not_do_is_audited(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "diptych.audit")
    async with face(*["{}", "Hello!"] * 3, access=policy(), limits=Limits(2, 60)) as helper:
        run_id = (await ask(helper, "ada", session="s")).headers["X-Run-ID"]
        post, delete = helper.http.post, helper.http.delete
        await post(f"/v1/runs/{run_id}/cancel", headers=as_("bob"), json={})
        await post(CHAT, headers=as_("auditor"), json=HI)
        await delete("/memory/sessions/key:ada/s", headers=as_("auditor"))
        await delete("/memory/sessions/s", headers=as_("ada"))
    lines = [json.loads(r.message) for r in caplog.records if r.name == "diptych.audit"]
    told = [
        (n["subject"], n["what"], n.get("run") or n.get("session"), n["outcome"]) for n in lines
    ]
    assert told == [
        ("key:ada", "start", run_id, "allowed"),
        ("key:bob", "cancel", run_id, "refused"),
        ("key:auditor", "start", None, "refused"),
        ("key:auditor", "delete", "key:ada/s", "refused"),
        ("key:ada", "delete", "s", "allowed"),
    ]
    assert lines[1]["why"] == "not found, or it belongs to another subject"
    assert lines[2]["why"] == "it lacks the right ask"
    assert (lines[3]["right"], lines[3]["why"]) == ("manage", "it lacks the right manage")


async def test_nothing_is_audited_where_everybody_may_do_everything(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "diptych.audit")
    async with face() as helper:
        assert (await helper.http.post(CHAT, json=HI)).status_code == 200
    assert not [r for r in caplog.records if r.name == "diptych.audit"]
