"""The prompted simulator: the worked example, what it is shown, strict reading, cost, budget, memory, concurrency."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from rlready.dream.base import Action, Moment, Reply
from rlready.dream.checks import same_actions
from rlready.dream.domain import Domain, Ending, call_text
from rlready.dream.format import Unparsable
from rlready.dream.gym import Gym
from rlready.dream.library import Library
from rlready.dream.roles import Template
from rlready.dream.simulators import load_simulator
from rlready.dream.simulators.endpoint import MEMORY, NO_CRITERIA, EndpointSimulator
from rlready.dream.state import StateRules
from rlready.endpoint import Endpoint, Prices
from rlready.errors import UserError
from rlready.experience.episode import LoggedEpisode
from rlready.remembered import Answers
from tests.dream.endpoint_fixtures import Answer, Served, chat

T = TypeVar("T")


def wrote(reply: str, failed: str = "no", done: str = "no", confidence: int = 80) -> str:
    return f"<reply>{reply}</reply><failed>{failed}</failed><done>{done}</done><confidence>{confidence}</confidence>"


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    servers: list[Served] = []

    def start(answer: Callable[[int, dict[str, Any]], Answer], delay: float = 0.0) -> Served:
        servers.append(Served(answer, delay))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def run(simulator: EndpointSimulator, work: Callable[[], Awaitable[T]]) -> T:
    async def inner() -> T:
        try:
            return await work()
        finally:
            await simulator.close()

    return asyncio.run(inner())


# ---------------------------------------------------------------- list page, click, detail page, answer

LIST = '[1] link "Files"\n[2] link "1,142 commits"\n[3] link "Branches"'
HISTORY = (
    '[1] text "5 April 2023" [2] link "add retry"\n[3] text "1 April 2023" [4] link "fix the build"\n'
    '[5] text "30 March 2023" [6] link "typo"'
)
DETAIL = '[1] heading "fix the build"\n[2] text "committed 1 April 2023"'
QUESTION = f"What is the message of the first commit of April 2023?\n{LIST}"
PAGES = Domain(rules="a code host", ending=Ending(heads=("answer[",), cap=8))
OTHER = LoggedEpisode("t9", "Find the old tag", ("click[1]", "answer[v1]"), ('[1] text "2 May"', ""), True, True)


def pages() -> Library:
    return Library([OTHER], PAGES, StateRules())


def last_action(body: dict[str, Any]) -> str:
    """The action that is to be answered: after the demonstrations, before the reminder of the form."""
    asked = str(body["messages"][-1]["content"]).rsplit("\n\n(Write ", 1)[0]
    return asked.rsplit("] ", 1)[1] if "] " in asked else asked


def browser(number: int, body: dict[str, Any]) -> Answer:
    """Plays the example from the conversation: the page that was shown last, and the action."""
    messages = body["messages"]
    if messages[0]["content"].startswith("You judge"):
        text = messages[0]["content"]
        good = "answer[fix the build]" in text and HISTORY in text
        return chat(f"<verdict>{'right' if good else 'wrong'}</verdict><confidence>95</confidence>")
    shown = [m["content"] for m in messages if m["role"] == "assistant"]
    page = shown[-1].split("<reply>")[1].split("</reply>")[0] if shown else LIST
    action = last_action(body)
    if (page, action) == (LIST, "click[2]"):
        return chat(wrote(HISTORY))
    if (page, action) == (HISTORY, "click[4]"):
        return chat(wrote(DETAIL))
    return chat(wrote("nothing opens", "yes", "no", 40))


def play(gym: Gym, actions: list[str], seed: int = 0) -> list[Any]:
    async def inner() -> list[Any]:
        env = gym.env()
        await env.reset(gym.task("t1", QUESTION), seed)
        steps = []
        for action in actions:
            steps.append(await env.step(action))
        await env.close()
        return steps

    assert isinstance(gym.simulator, EndpointSimulator)
    return run(gym.simulator, inner)


def test_the_worked_example_is_dreamt_through_a_gym(serve: Any) -> None:
    server = serve(browser)
    library = pages()
    simulator = EndpointSimulator(Endpoint(server.url, "m"), {}, library, PAGES)
    gym = Gym(PAGES, StateRules(), library, simulator)
    steps = play(gym, ["click[2]", "click[4]", "answer[fix the build]"])
    assert [s.observation.messages[-1].text for s in steps[:2]] == [HISTORY, DETAIL]
    assert [s.reward for s in steps] == [0, 0, 1] and [s.terminated for s in steps] == [False, False, True]
    assert steps[1].info["confidence"] == 0.8 and steps[2].info["judged"] == 0.95
    second = server.bodies[1]["messages"]
    assert [m["role"] for m in second] == ["system", "user", "assistant", "user"]
    assert second[1]["content"] == "[1] click[2]"
    assert second[2]["content"] == f"<reply>{HISTORY}</reply><failed>no</failed><done>no</done>"
    assert "\n\n[2] click[4]\n\n(Write <reply></reply>" in second[3]["content"]
    assert '[like] click[1]\n<reply>[1] text "2 May"</reply>' in second[3]["content"]
    assert "a code host" in second[0]["content"] and QUESTION in second[0]["content"]
    assert all(b["temperature"] == 0 and b["model"] == "m" for b in server.bodies)
    lost = play(gym, ["click[2]", "answer[typo]"])
    assert lost[1].terminated and lost[1].reward == 0
    # The same actions give the same episode, for the price of none.
    asked = len(server.bodies)
    again = play(gym, ["click[2]", "click[4]", "answer[fix the build]"])
    assert [s.observation.messages for s in again] == [s.observation.messages for s in steps]
    assert len(server.bodies) == asked and simulator.name == f"{server.url}#m"

    async def replays() -> bool:
        script = [(gym.task("t1", QUESTION), ["click[2]", "click[9]", "click[4]", "answer[fix the build]"])]
        return (await same_actions(gym.env_factory(), script)).passed

    assert run(simulator, replays)


# ---------------------------------------------------------------- what it is shown

SCHEMA = {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}


def phone() -> tuple[Domain, Library]:
    """Logs with tools: reading, writing, an error, words."""
    episodes = []
    for i in range(6):
        user = f"u{i}"
        look, change = call_text("get_user", {"id": user}), call_text("set_plan", {"id": user, "plan": "big"})
        document = json.dumps({"id": user, "plan": "small", "phone": f"55{i}"})
        done = json.dumps({"id": user, "plan": "big", "phone": f"55{i}"})
        episodes.append(
            LoggedEpisode(
                f"task{i}",
                f"{user} wants the big plan",
                (look, change, call_text("get_user", {"id": "nobody"}), "All done, anything else?", "Bye."),
                (document, done, "Error: no such user", "No, thanks.", ""),
                True,
                True,
                errors=(2,),
            )
        )
    domain = Domain.learn(episodes, rules="Be kind.", tools=[
        {"name": "get_user", "description": "Read a user.", "parameters": SCHEMA},
        {"name": "set_plan", "description": "Change a plan.",
         "parameters": {**SCHEMA, "properties": {"id": {"type": "string"}, "plan": {"type": "string"}}}},
    ])  # fmt: skip
    return domain, Library(episodes, domain, StateRules(reads=frozenset({"get_user"})))


def moment_of(library: Library, task: str = "task3", **changes: Any) -> Moment:
    anchor = library.anchor(task, 7)
    return replace(Moment(task, "u3 wants the big plan", 7, anchor=anchor), **changes)


def test_the_slots_say_what_the_logs_hold() -> None:
    domain, library = phone()
    simulator = EndpointSimulator(Endpoint("http://x", "m"), {}, library, domain, demos=2)
    (action,) = domain.parse(call_text("get_user", {"id": "u9"}))
    system = simulator.conversation(moment_of(library), action)[0].text
    for part in (
        "Be kind.",
        "Only look, and change nothing: get_user.",
        "May change the world: set_plan.",
        "You answer as the user",
        "- get_user: a JSON object with id, plan, phone",
        '{"name": "set_plan", "description": "Change a plan."',
        "get_user, 6 times: Error: no such user",
        '"phone": "553"',  # the anchor's fact
        "u3 wants the big plan",
        "<confidence>0 to 100",
    ):
        assert part in system, part
    assert system.index("<reply>exactly") < system.index("<confidence>0 to 100")
    shown = simulator.conversation(moment_of(library), action)[-1].text
    assert shown.count("[like]") == 2 and shown.rstrip().endswith("<confidence></confidence>.)")
    blind = EndpointSimulator(Endpoint("http://x", "m"), {}, library, domain, exclude_own=True)
    (own,) = domain.parse(call_text("get_user", {"id": "u3"}))
    text = "\n".join(m.text for m in blind.conversation(moment_of(library), own))
    world = text[text.index("# What is so in this world") : text.index("# How the tools are called")]
    assert "(nothing is known)" in world  # measuring must not see the recording that it is measured on


def test_long_episodes_and_long_replies_are_cut() -> None:
    domain, library = phone()
    simulator = EndpointSimulator(
        Endpoint("http://x", "m"), {}, library, domain, demos=0, reply_chars=50, history_chars=1000
    )
    past = tuple((Action(f"word {i}"), Reply("y" * 500)) for i in range(30))
    messages = simulator.conversation(moment_of(library, past=past), Action("now"))
    assert messages[1].text.startswith("[1] to [") and messages[-1].text.startswith("[31] now")
    assert messages[-3].text == "[30] word 29" and "y" * 44 + " [...]" in messages[-2].text
    assert sum(len(m.text) for m in messages[1:-1]) < 1300
    roles = [m.role for m in messages]
    assert roles == ["system", *["user", "assistant"] * (len(roles) // 2 - 1), "user"]


def test_the_judge_is_asked_by_the_criteria(serve: Any) -> None:
    domain, library = phone()
    server = serve(lambda n, body: chat("<verdict>wrong</verdict><confidence>70</confidence>"))
    simulator = EndpointSimulator(
        Endpoint(server.url, "m"), {}, library, domain, criteria={"task3": "u3 must be on the big plan"}
    )
    (change,) = domain.parse(call_text("set_plan", {"id": "u3", "plan": "big"}))
    moment = moment_of(library, past=((change, Reply("ok")), (Action("Bye."), Reply("", done=True))))
    assert run(simulator, lambda: simulator.judge(moment)) == pytest.approx(0.3)
    text = server.bodies[0]["messages"][0]["content"]
    assert "u3 must be on the big plan" in text and NO_CRITERIA not in text
    assert '"phone": "553"' in text and f"[1] {change.text}\n<reply>ok</reply>" in text
    other = replace(moment, task_id="task4")
    run(simulator, lambda: simulator.judge(other))
    assert NO_CRITERIA in server.bodies[1]["messages"][0]["content"]


def test_step_rewards_have_a_tag_of_their_own(serve: Any) -> None:
    domain = replace(PAGES, step_rewards=True)
    text = wrote("a page").replace("<confidence>", "<reward>0.5</reward><confidence>")
    server = serve(lambda n, body: chat(text))
    simulator = EndpointSimulator(Endpoint(server.url, "m"), {}, pages(), domain)
    moment = Moment("t1", QUESTION, 1, past=((Action("a"), Reply("b", reward=-1.0)),))
    reply = run(simulator, lambda: simulator.reply(moment, Action("click[2]")))
    assert (reply.text, reply.reward, reply.confidence, reply.origin) == ("a page", 0.5, 0.8, "model")
    assert "<reply>b</reply><failed>no</failed><done>no</done><reward>-1</reward>" in str(server.bodies[0]["messages"])


# ---------------------------------------------------------------- reading


@pytest.mark.parametrize("broken", ["It opens.", wrote("x").replace("</done>", ""), wrote("x") + "!", ""])
def test_what_cannot_be_read_is_sent_back_once_with_the_reason(serve: Any, broken: str) -> None:
    server = serve(lambda n, body: chat(broken if n == 1 else wrote("ok")))
    simulator = EndpointSimulator(Endpoint(server.url, "m"), {}, pages(), PAGES)
    reply = run(simulator, lambda: simulator.reply(Moment("t1", QUESTION, 1), Action("click[2]")))
    assert reply.text == "ok" and simulator.resampled == 1
    first, second = (b["messages"] for b in server.bodies)
    assert second[: len(first)] == first and second[-2] == {"role": "assistant", "content": broken}
    assert "could not be read" in second[-1]["content"]
    assert server.bodies[0]["seed"] != server.bodies[1]["seed"]

    worse = serve(lambda n, body: chat(broken))
    simulator = EndpointSimulator(Endpoint(worse.url, "m"), {}, pages(), PAGES)
    with pytest.raises(Unparsable):
        run(simulator, lambda: simulator.reply(Moment("t1", QUESTION, 1), Action("click[2]")))
    assert len(worse.bodies) == 2
    gym = Gym(PAGES, StateRules(), pages(), simulator)
    (step,) = play(gym, ["click[2]"])
    assert "could not be read" in step.info["failure"]


@pytest.mark.parametrize("thought", ["<think>It opens <reply>.</think>\n", "I see. It opens.</think>"])
def test_thoughts_before_the_answer_are_taken_off(serve: Any, thought: str) -> None:
    server = serve(lambda n, body: chat(thought + wrote("a page")))
    simulator = EndpointSimulator(Endpoint(server.url, "m"), {}, pages(), PAGES)
    assert run(simulator, lambda: simulator.reply(Moment("t1", QUESTION, 1), Action("click[2]"))).text == "a page"
    keeps = serve(lambda n, body: chat(wrote("a </think> b")))
    simulator = EndpointSimulator(Endpoint(keeps.url, "m"), {}, pages(), PAGES)
    assert run(simulator, lambda: simulator.reply(Moment("t1", QUESTION, 1), Action("x"))).text == "a </think> b"


# ---------------------------------------------------------------- cost, limits, memory


def test_cost_is_counted_and_the_budget_stops(serve: Any) -> None:
    server = serve(lambda n, body: chat(wrote(str(n)), read=1000, wrote=200))
    endpoint = Endpoint(server.url, "m", prices=Prices(2.0, 10.0), budget=0.011, concurrency=1)
    simulator = EndpointSimulator(endpoint, {}, pages(), PAGES)

    async def ask(n: int) -> None:
        await simulator.reply(Moment("t1", QUESTION, 1), Action(f"click[{n}]"))

    async def three() -> None:
        for n in range(3):
            await ask(n)

    run(simulator, three)
    assert endpoint.usage.cost == pytest.approx(3 * (1000 * 2 + 200 * 10) / 1e6)
    with pytest.raises(
        UserError, match=r"budget of 0\.011 .* is spent: 0\.012 after 3 requests with 3,000 tokens read"
    ):
        run(simulator, lambda: ask(3))
    run(simulator, lambda: ask(2))  # what is remembered costs nothing
    assert len(server.bodies) == 3 and endpoint.usage.remembered == 1
    with pytest.raises(UserError, match="needs prices"):
        Endpoint(server.url, "m", budget=1.0)


def test_a_rate_limit_holds_all_requests_back(serve: Any) -> None:
    def answer(n: int, body: dict[str, Any]) -> Answer:
        return (429, {"retry-after": "0.3"}, "slow down") if n == 1 else chat(wrote("ok"))

    server = serve(answer)
    endpoint = Endpoint(server.url, "m", concurrency=1)
    simulator = EndpointSimulator(endpoint, {}, pages(), PAGES)

    async def two() -> list[Reply]:
        asked = (simulator.reply(Moment("t1", QUESTION, 1), Action(f"click[{n}]")) for n in range(2))
        return await asyncio.gather(*asked)

    assert [r.text for r in run(simulator, two)] == ["ok", "ok"]
    assert len(server.bodies) == 3 and endpoint.usage.retries == 1
    assert min(server.times[1:]) - server.times[0] >= 0.25


def test_the_same_question_is_asked_once_however_many_ask(serve: Any) -> None:
    """A provider that never answers twice alike: a group's members must still hear the same."""
    server = serve(lambda n, body: chat(wrote(f"answer {random.random()}")), delay=0.02)
    simulator = EndpointSimulator(Endpoint(server.url, "m", concurrency=8), {}, pages(), PAGES)
    moments = [Moment("t1", QUESTION, world) for world in range(4)] * 8

    async def all_at_once() -> list[Reply]:
        return await asyncio.gather(*(simulator.reply(m, Action("click[2]")) for m in moments))

    first = run(simulator, all_at_once)
    assert len(server.bodies) == 4 and 1 < server.most <= 8
    by_world = [{r.text for m, r in zip(moments, first, strict=True) if m.world == w} for w in range(4)]
    assert all(len(texts) == 1 for texts in by_world) and len(set.union(*by_world)) == 4
    simulator.release(2)  # another member of the group may still ask
    assert run(simulator, all_at_once) == first and len(server.bodies) == 4


def test_who_asks_first_may_leave_and_the_next_one_asks(serve: Any) -> None:
    server = serve(lambda n, body: chat(wrote(str(n))), delay=0.05)
    simulator = EndpointSimulator(Endpoint(server.url, "m"), {}, pages(), PAGES)

    async def work() -> Reply:
        first, second = (
            asyncio.ensure_future(simulator.reply(Moment("t1", QUESTION, 1), Action("click[2]"))) for _ in range(2)
        )
        await asyncio.sleep(0.02)
        first.cancel()
        return await asyncio.wait_for(second, 10)

    assert run(simulator, work).text in ("1", "2")


def test_answers_on_disk_outlive_the_process_and_belong_to_their_request(serve: Any, tmp_path: Path) -> None:
    count = itertools.count()
    server = serve(lambda n, body: chat(wrote(f"answer {next(count)}")))
    path = tmp_path / "deep" / MEMORY

    def one(**settings: Any) -> str:
        answers = Answers(path)
        simulator = EndpointSimulator(Endpoint(server.url, "m", answers=answers, **settings), {}, pages(), PAGES)
        text = run(simulator, lambda: simulator.reply(Moment("t1", QUESTION, 1), Action("click[2]"))).text
        answers.close()
        return text

    assert [one(), one(), one(max_tokens=7), one()] == ["answer 0", "answer 0", "answer 1", "answer 0"]
    a, b = Answers(path), Answers(path)  # two processes that asked at once
    assert a.put("q", "first") == "first" and b.put("q", "second") == "first" == b.get("q")
    small = Answers(most=2)
    for i in range(5):
        small.put(str(i), "x")
    assert small.get("0") is None and small.get("4") == "x"
    (tmp_path / "no").write_text("this is no data base at all, but a text of some length" * 20)
    with pytest.raises(UserError, match="cannot be used as a memory"):
        Answers(tmp_path / "no")


def test_fields_that_an_endpoint_refuses_can_be_left_out(serve: Any) -> None:
    server = serve(lambda n, body: chat(wrote("ok")))
    endpoint = Endpoint(server.url, "m", extra={"seed": None, "max_tokens": None, "max_completion_tokens": 50})
    simulator = EndpointSimulator(endpoint, {}, pages(), PAGES)
    run(simulator, lambda: simulator.reply(Moment("t1", QUESTION, 1), Action("click[2]")))
    assert "seed" not in server.bodies[0] and "max_tokens" not in server.bodies[0]
    assert server.bodies[0]["max_completion_tokens"] == 50


# ---------------------------------------------------------------- by a string, from a gym's folder


def test_a_gym_folder_brings_templates_settings_and_criteria(
    serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(lambda n, body: chat("<verdict>right</verdict><confidence>60</confidence>"))
    domain, library = phone()
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "judge.md").write_text("MINE $task $rules $criteria $world $transcript")
    (tmp_path / "templates" / "criteria.json").write_text(json.dumps({"task3": "must be big"}))
    (tmp_path / "endpoint.json").write_text(json.dumps({"prices": [1, 2], "budget": 5, "demos": 3, "max_tokens": 77}))
    monkeypatch.setenv("RLREADY_ENDPOINT_KEY", "secret")
    spec = f"{server.url}#some/model"
    simulator = load_simulator(spec, tmp_path, library, domain)
    assert isinstance(simulator, EndpointSimulator) and simulator.name == spec and simulator.demos == 3
    assert run(simulator, lambda: simulator.judge(moment_of(library))) == 0.6
    (body,) = server.bodies
    assert body["messages"][0]["content"].startswith("MINE u3 wants") and "must be big" in str(body)
    assert body["model"] == "some/model" and body["max_tokens"] == 77
    assert server.headers[0]["authorization"] == "Bearer secret"
    assert isinstance(simulator.endpoint, Endpoint) and simulator.endpoint.usage.cost == pytest.approx(120e-6)
    assert simulator.templates["simulator"] == Template.load("simulator")
    again = load_simulator(spec, tmp_path, library, domain)
    assert isinstance(again, EndpointSimulator)
    assert run(again, lambda: again.judge(moment_of(library))) == 0.6 and len(server.bodies) == 1  # from disk


@pytest.mark.parametrize(
    ("name", "text", "match"),
    [
        ("endpoint.json", "{", "not valid JSON"),
        ("endpoint.json", "[]", "must hold a JSON object, not list"),
        ("endpoint.json", '{"temprature": 1}', 'Unknown setting .* "temprature". Did you mean temperature'),
        ("endpoint.json", '{"prices": 3}', "list of two numbers"),
        ("endpoint.json", '{"budget": 3}', "needs prices"),
        ("templates/simulator.md", "$task", "must name exactly the fields"),
    ],
)
def test_damaged_folders_are_said_in_one_sentence(tmp_path: Path, name: str, text: str, match: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=match):
        load_simulator("http://localhost:1/v1#m", tmp_path, pages(), PAGES)


def test_no_model_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="names no model"):
        load_simulator("http://localhost:1/v1", tmp_path, pages(), PAGES)
    monkeypatch.delenv("RLREADY_ENDPOINT_KEY", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "not for everyone")
    here = load_simulator("http://localhost:1/v1#m", tmp_path, pages(), PAGES)
    there = load_simulator("https://api.openai.com/v1#m", tmp_path, pages(), PAGES)
    assert isinstance(here, EndpointSimulator) and isinstance(there, EndpointSimulator)
    assert isinstance(here.endpoint, Endpoint) and isinstance(there.endpoint, Endpoint)
    assert here.endpoint.key_variable is None and there.endpoint.key_variable == "OPENAI_API_KEY"


def test_new_recordings_are_shown() -> None:
    simulator = EndpointSimulator(Endpoint("http://x", "m"), {}, pages(), PAGES)
    before = simulator.conversation(Moment("t1", QUESTION, 1), Action("click[7]"))[-1].text
    new = LoggedEpisode("t8", "Find", ("click[7]", "answer[v1]"), ("a new page", ""), True, True)
    grown = Library([OTHER, new], PAGES, StateRules())
    asyncio.run(simulator.learn(grown, []))
    after = simulator.conversation(Moment("t1", QUESTION, 1), Action("click[7]"))[-1].text
    assert "a new page" in after and "a new page" not in before
