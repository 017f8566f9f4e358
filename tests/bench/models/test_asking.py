"""What is asked of a model server: nothing twice, and no more of a reply than is needed."""

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import orjson
import pytest
from bench.models import asking
from bench.models.kept_replies import KeptReplies
from bench.models.questions import Question
from bench.models.server import ModelServer

ASKED = [{"role": "user", "content": "Where?"}]


class Speaker(BaseHTTPRequestHandler):
    """Streams numbers, one a line, as llama.cpp's server does."""

    bodies: list[bytes]

    def do_POST(self):
        self.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()
        for n in range(1000):
            delta = {"content": f"{n} "}
            self.wfile.write(b"data: %b\n\n" % orjson.dumps({"choices": [{"delta": delta}]}))
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *args):
        pass


@pytest.fixture
def kept(tmp_path, monkeypatch):
    monkeypatch.setattr(asking, "kept_replies", lambda: KeptReplies(tmp_path))
    return tmp_path / "replies.jsonl"


@pytest.fixture
def server(kept):
    Speaker.bodies = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Speaker) as listening:
        Thread(target=listening.serve_forever).start()
        yield ModelServer(listening.server_address[1], "one")
        listening.shutdown()


def test_the_same_request_is_asked_once_of_what_is_the_same_server(server, kept):
    (said,) = asking.replies([server], [ASKED])
    assert said.endswith("998 999 ")
    with kept.open("a") as file:
        file.write('["cut of')
    assert asking.replies([server], [ASKED]) == [said]
    assert len(Speaker.bodies) == 1
    asking.replies([ModelServer(server.port, "other")], [ASKED])
    assert len(Speaker.bodies) == 2


def test_it_is_asked_anew_if_that_is_wanted(server, monkeypatch):
    asking.replies([server], [ASKED])
    monkeypatch.setenv("FRESH", "1")
    asking.replies([server], [ASKED])
    assert len(Speaker.bodies) == 2


def test_a_reply_is_read_no_further_than_its_judgment_needs(server):
    question = Question("?", "plain", {"right": ["7"]})
    (said,) = asking.replies([server], [ASKED], judged_by=[question])
    assert said.startswith("0 1 2 3 4 5 6 7 ")
    assert len(said) < 40
    (whole,) = asking.replies([server], [ASKED])
    assert whole.endswith("998 999 "), "what was read in part is no reply"
    assert asking.replies([server], [ASKED], judged_by=[question]) == [whole]
