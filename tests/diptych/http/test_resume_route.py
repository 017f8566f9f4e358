"""`POST /v1/runs/{id}/resume`, without a socket."""

from support.face import face, openai_error
from support.stack import call

FAILS = {"error": "the model is ill"}
ECHO = call("echo", text="hello")


async def echo(text: str = "") -> str:
    return text


async def test_a_failed_run_is_taken_up_by_a_new_one() -> None:
    async with face(ECHO, "{}", FAILS, tools={"echo": echo}) as helper:
        run = (await helper.http.post("/v1/runs", json={"input": "hi", "session_id": "s"})).json()
        await helper.http.get(f"/v1/runs/{run['id']}/events")
        response = await helper.http.post(f"/v1/runs/{run['id']}/resume")
        assert response.status_code == 202, response.text
        new = response.json()
        assert (new["session_id"], new["resumes"], new["object"]) == ("s", run["id"], "run")
        await helper.http.get(f"/v1/runs/{new['id']}/events")
        read = (await helper.http.get(f"/v1/runs/{new['id']}")).json()
        assert read["resumes"] == run["id"]
        again = await helper.http.post(
            f"/v1/runs/{run['id']}/resume", json={}, headers={"Idempotency-Key": "k"}
        )
        assert again.json()["id"] == new["id"]


async def test_refusals_have_their_status_and_a_sentence() -> None:
    async with face("{}", "Hello.") as helper:
        run = (await helper.http.post("/v1/runs", json={"input": "hi"})).json()
        await helper.http.get(f"/v1/runs/{run['id']}/events")
        path = f"/v1/runs/{run['id']}/resume"
        done = await helper.http.post(path, json={})
        assert openai_error(done, 409)["code"] == "not_resumable"
        many = await helper.http.post(path, json={"max_steps": 99})
        assert openai_error(many, 400)["param"] == "max_steps"
        assert "at most 5" in openai_error(many, 400)["message"]
        for body in ({"max_steps": 0}, {"message": "hi"}, {"max_steps": "3"}):
            assert (await helper.http.post(path, json=body)).status_code == 400
        assert (await helper.http.post("/v1/runs/run-x/resume", json={})).status_code == 404
        lost = "/v1/runs/run-ffffffff-00000000000000000000000000000001/resume"
        assert (await helper.http.post(lost, json={})).status_code == 410
