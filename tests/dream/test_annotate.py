"""Teachers: the program, and a language model behind a fake endpoint on the loopback."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from rlready.aio import run_sync
from rlready.dream.annotate import EndpointAnnotator, ProgramAnnotator, paired, quotes_outcome
from rlready.dream.memory import Notes
from rlready.endpoint import Endpoint
from rlready.errors import UserError
from rlready.experience.episode import LoggedEpisode
from tests.dream.dream_phone import form, logged

Reply = tuple[int, dict[str, str], str]


class Server:
    """Answers POSTs by a function of (number of the request, body)."""

    def __init__(self, answer: Callable[[int, dict[str, Any]], Reply]) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.at_once = self.most_at_once = 0
        lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                with lock:
                    outer.bodies.append(body)
                    outer.headers.append(dict(self.headers))
                    outer.at_once += 1
                    outer.most_at_once = max(outer.most_at_once, outer.at_once)
                    number = len(outer.bodies)
                status, headers, text = answer(number, body)
                with lock:
                    outer.at_once -= 1
                self.send_response(status)
                for k, v in headers.items():
                    self.send_header(k, v)
                data = text.encode()
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[int, dict[str, Any]], Reply]], Server]]:
    servers: list[Server] = []

    def start(answer: Callable[[int, dict[str, Any]], Reply]) -> Server:
        servers.append(Server(answer))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def chat(text: str) -> Reply:
    body = {"choices": [{"message": {"content": text}}], "usage": {"prompt_tokens": 10, "completion_tokens": 3}}
    return 200, {}, json.dumps(body)


def teacher(number: int, body: dict[str, Any]) -> Reply:
    """Reads its answer off the prompt: the card, or a trace that names what is still broken after the action."""
    prompt = body["messages"][0]["content"]
    if "must have been so at the start" in prompt:
        return chat("<card>air sim</card>")
    fixed = [w for w in ("air", "sim") if f"fix {w}" in prompt]
    return chat(f"<think>{' '.join(w for w in ('air', 'sim') if w not in fixed)}</think>")


def test_endpoint_teacher(serve: Any) -> None:
    server = serve(teacher)
    annotator = EndpointAnnotator.at(server.url, "teacher-1", words=("air", "sim"))
    episode, notes = logged()
    (annotation,) = annotator.annotate([episode])
    assert annotation == Notes(("air", "sim"), tuple(tuple(t) for t in notes.traces))
    assert isinstance(annotator.writer, Endpoint)
    usage = annotator.writer.usage
    assert (usage.requests, usage.retries, usage.prompt_tokens, usage.completion_tokens) == (5, 0, 50, 15)
    prompts = [b["messages"][0]["content"] for b in server.bodies]
    assert all(b["model"] == "teacher-1" for b in server.bodies)
    step = next(p for p in prompts if "# Action\nfix sim" in p)
    assert "1. action: look\n   reply: air_on sim_out\n2. action: fix air\n   reply: ok" in step
    assert "# Recorded next state\nok" in step and "air sim" in step and "phone dead" in step
    assert "3. action" not in step  # nothing after the step that is explained
    # What comes out trains the small model as it is.
    assert annotation is not None and form().rows(episode, annotation)


def test_retries_with_pauses_then_success(serve: Any) -> None:
    def flaky(number: int, body: dict[str, Any]) -> Reply:
        return {1: (503, {}, "busy"), 2: (429, {"retry-after": "0.01"}, "slow down")}.get(number) or chat(
            "<think>x</think>"
        )

    server = serve(flaky)
    endpoint = Endpoint(server.url, "m", pause=0.01)

    async def run() -> str:
        try:
            return await endpoint.write("p", seed=7)
        finally:
            await endpoint.close()

    assert run_sync(run()) == "<think>x</think>"
    assert endpoint.usage.retries == 2 and endpoint.usage.requests == 1
    assert endpoint._pause(0, "0.25", 1) == 0.25 and endpoint._pause(0, "9999", 1) == endpoint.longest_pause
    pauses = [endpoint._pause(a, None, 1) for a in range(20)]
    assert (
        all(0.5 * 0.01 * 2**a <= p or p == endpoint.longest_pause for a, p in enumerate(pauses)) and max(pauses) == 30
    )


@pytest.mark.parametrize(
    ("reply", "why", "asked"),
    [
        ((500, {}, "broken"), "did not answer in 3 tries; the last one: HTTP 500: broken", 3),
        ((401, {}, "no key"), r"refused the request \(HTTP 401: no key\)", 1),
        ((200, {}, "<html>"), "another form than a chat completion", 1),
        ((200, {}, '{"choices": []}'), "another form than a chat completion", 1),
        ((200, {}, '{"choices": [{"message": {"content": null}}]}'), "answered without text", 1),
    ],
)
def test_failures_are_one_sentence(serve: Any, reply: Reply, why: str, asked: int) -> None:
    server = serve(lambda number, body: reply)
    annotator = EndpointAnnotator(Endpoint(server.url, "m", tries=3, pause=0.001, concurrency=1), world=None)
    with pytest.raises(UserError, match=why):
        annotator.annotate([LoggedEpisode("k", "i", ("a",), ("b",), False, False)])
    assert len(server.bodies) == asked


def test_nobody_listens_and_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    annotator = EndpointAnnotator(Endpoint("http://127.0.0.1:9", "m", tries=2, pause=0.001), world=None)
    with pytest.raises(UserError, match=r"did not answer in 2 tries; the last one: ConnectError"):
        annotator.annotate([LoggedEpisode("k", "i", ("a",), ("b",), False, False)])
    monkeypatch.delenv("NO_SUCH_KEY_VARIABLE", raising=False)
    with pytest.raises(UserError, match="NO_SUCH_KEY_VARIABLE is not set"):
        run_sync(Endpoint("http://127.0.0.1:9", "m", key_variable="NO_SUCH_KEY_VARIABLE").write("p"))


def test_key_is_sent_and_requests_are_bounded(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()

    def slow(number: int, body: dict[str, Any]) -> Reply:
        gate.wait(0.03)
        return chat("<think>air</think>")

    server = serve(slow)
    monkeypatch.setenv("TEACHER_KEY", "k-1")
    endpoint = Endpoint(server.url, "m", key_variable="TEACHER_KEY", concurrency=3)
    annotator = EndpointAnnotator(endpoint, world=None)
    episodes = [LoggedEpisode(f"k{n}", "i", ("a", "b"), ("r", "s"), False, False) for n in range(6)]
    assert all(a is not None for a in annotator.annotate(episodes))
    assert 2 <= server.most_at_once <= 3
    assert {h["Authorization"] for h in server.headers} == {"Bearer k-1"}


def test_bad_traces_are_asked_for_again_and_the_rest_left_out(serve: Any) -> None:
    tries: dict[str, int] = {}

    def poor(number: int, body: dict[str, Any]) -> Reply:
        prompt = body["messages"][0]["content"]
        action = prompt.split("# Action\n")[1].split("\n")[0]
        tries[action] = tries.get(action, 0) + 1
        if action == "never":
            return chat("Of course: <think>air</think>")
        said = ["no tags", "<think>words unknown</think>", "<think>air sim</think>"][min(tries[action], 3) - 1]
        return chat(said)

    server = serve(poor)
    annotator = EndpointAnnotator(Endpoint(server.url, "m"), world=None, words=("air", "sim"))
    good = LoggedEpisode("k1", "i", ("once",), ("r",), False, False)
    bad = LoggedEpisode("k2", "i", ("never",), ("r",), False, False)
    result = annotator.annotate([good, bad])
    assert result[0] == Notes((), (("air", "sim"),)) and result[1] is None
    assert paired([good, bad], result) == ([good], [result[0]])
    report = annotator.report
    assert (report.steps, report.unparsable, report.strange_words, report.episodes_left_out) == (2, 4, 1, 1)


def test_traces_that_quote_the_outcome_are_refused(serve: Any) -> None:
    state = "the commit history lists five entries of April"
    quote = f"<think>so {state}</think>"
    reason = "<think>clicking the counter opens what it counts, the commit history, with entries by date</think>"
    server = serve(lambda number, body: chat(quote if number == 1 else reason))
    annotator = EndpointAnnotator(Endpoint(server.url, "m"), world=None)
    (annotation,) = annotator.annotate([LoggedEpisode("k", "i", ("click",), (state,), False, False)])
    assert annotation is not None and "clicking" in annotation.traces[0]
    assert annotator.report.quoting == 1 and len(server.bodies) == 2


@pytest.mark.parametrize(
    ("trace", "outcome", "known", "refused"),
    [
        ("air_on sim_out data_off", "air_on sim_out data_off", "", True),
        ("it is on since air_on sim_out data_off", "air_on sim_out data_off", "", False),  # 3 of 7 words
        ("so air_on sim_out data_off", "air_on sim_out data_off", "", True),
        (
            "air_on sim_out data_off",
            "air_on sim_out data_off",
            "earlier: air_on sim_out data_off",
            False,
        ),  # known before
        ("ok", "ok", "", True),
        ("the switch flips so it is ok", "ok", "", False),
        ("the phone restarts, as given by the recorded next state", "restarted", "", True),
        ("", "ok", "", False),
        ("Air_On,  SIM_out; data_off!", "air_on sim_out data_off", "", True),
    ],
)
def test_what_counts_as_quoting(trace: str, outcome: str, known: str, refused: bool) -> None:
    assert quotes_outcome(trace, outcome, known) is refused


def test_program_teacher_draws_by_episode_not_by_order_of_calls() -> None:
    class Guess:
        def annotate(self, episode: LoggedEpisode, rng: random.Random) -> Notes:
            return Notes((rng.choice("abcdefgh"),), ((),) * len(episode))

    episodes = [logged(f"k{n}", seed=n)[0] for n in range(30)]
    first = ProgramAnnotator(Guess()).annotate(episodes)
    assert first == ProgramAnnotator(Guess()).annotate(episodes)
    assert first != ProgramAnnotator(Guess(), seed=1).annotate(episodes)
    assert len({a.card[0] for a in first if a}) > 3
