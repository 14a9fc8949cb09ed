"""The report: three files from one measurement, nothing unescaped, nothing from outside, and back from JSON."""

from __future__ import annotations

import asyncio
import dataclasses
import html.parser
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from rlready.dream.base import Action, Moment, Reply
from rlready.dream.domain import Domain
from rlready.dream.gate import gate
from rlready.dream.gym import Gym
from rlready.dream.gymenv import GymEnv
from rlready.dream.library import Library
from rlready.dream.measure.closed_loop import Dreamt
from rlready.dream.measure.open_loop import open_loop
from rlready.dream.measure.whole import dream_of, measure_gym
from rlready.dream.report import DreamReport, to_markdown
from rlready.dream.report_html import marked, to_html
from rlready.dream.simulators.retrieval import Retrieval
from rlready.dream.state import StateRules
from rlready.envs.base import EnvFactory, Observation
from rlready.errors import UserError
from rlready.experience.episode import LoggedEpisode
from rlready.seeds import derive
from rlready.types import Task
from tests.dream.measure.desk import DOMAIN, RULES, Desk, Scripted, cancel, doc, episode, get, task

NASTY = '<script>alert(1)</script> & "quotes" \' \x00 | **bold** \ud800'


def played(n: int) -> LoggedEpisode:
    """A recording of the desk itself."""
    world = Desk()
    t: Task = task(n)
    actions = [get(f"W{n}"), cancel(f"W{n}"), get(f"W{n}"), "Done."]

    async def play() -> tuple[list[str], float]:
        seen = (await world.reset(t, 0)).messages
        replies, reward = list[str](), 0.0
        for text in actions:
            step = await world.step(text)
            new = step.observation.messages[len(seen) + 1 :]
            replies.append("\n".join(m.text for m in new))
            seen, reward = step.observation.messages, reward + step.reward
        return replies, reward

    replies, reward = asyncio.run(play())
    errors = tuple(i for i, r in enumerate(replies) if "error" in r)
    return LoggedEpisode(
        t.id, str(t.data["instruction"]), tuple(actions), tuple(replies), reward > 0, finished=True, errors=errors
    )


def gym() -> Gym:
    logs = [played(n) for n in range(24)]
    train, test = logs[:16], logs[16:]
    tools = [spec.schema() for spec in DOMAIN.tools.values()]
    domain = Domain.learn(train, rules=DOMAIN.rules, tools=tools)
    state = StateRules.learn(train, domain)
    library = Library(train, domain, state)
    splits = {"train": tuple(e.task_id for e in train), "test": tuple(e.task_id for e in test)}
    return Gym(domain, state, library, Retrieval(library), splits=splits, held_out=test, about={"logs": "desk"})


@pytest.fixture(scope="module")
def report() -> DreamReport:
    made = gym()
    scripts = [(made.task(e.task_id, e.instruction), list(e.actions)) for e in made.episodes("train")[:4]]
    env = made.env_factory(evaluation=True)
    said = asyncio.run(gate(env, made.domain, scripts, recorded=made.episodes("train"), reads=made.state.reads))
    reals = {f"t{n}": task(n) for n in range(24)}
    return asyncio.run(
        measure_gym(
            made, name="desk", gate=said, real=Desk, real_tasks=reals, sessions=[gym().env_factory()], replays=5
        )
    )


def test_a_gym_is_measured_whole(report: DreamReport) -> None:
    assert [(r.name, r.with_code) for r in report.loops] == [
        ("retrieval", True),
        ("retrieval", False),
        ("nearest", False),
        ("no_change", False),
    ]
    assert report.gate is not None and report.gate.passed, str(report.gate)
    assert report.sameness is not None and report.sameness.passed and report.sameness.sessions == 1
    assert report.quality is not None and report.quality.contradictions.per_episode == 0
    assert report.closed is not None and report.closed.episodes == 8 and report.closed.real_transitions == 32
    assert report.curve is not None and [p.traces for p in report.curve.points] == [0, 1, 4, 8, 16]
    assert report.errors is not None and report.errors.verdicts == 8
    assert report.verdict is not None and report.about["recordings"] == 16 and report.about["logs"] == "desk"
    # The second look at an order is known to code: what was read, or what the writing call returned.
    assert report.loops[0].exact.micro > report.loops[1].exact.micro


def test_dreams_of_recorded_actions_are_logs() -> None:
    made = gym()
    found = asyncio.run(dream_of(made.env_factory(evaluation=True), made, made.episodes("test")))
    assert len(found) == 8 and all(e.source == "synthetic" and e.finished and len(e) == 4 for e in found)
    assert all(e.replies[-1] == "" and e.replies[0] for e in found)


def test_agents_of_ones_own_are_replayed_beside_the_recorded_actions() -> None:
    made = gym()
    mine = Dreamt("mine", task(20), episode((get("W20"), doc("W20")), ("Bye", ""), task_id="t20", success=True))
    found = asyncio.run(
        measure_gym(
            made,
            real=Desk,
            real_tasks={f"t{n}": task(n) for n in range(24)},
            dreams=[mine],
            played={"mine": 0.25},
            curve=False,
            replays=1,
            scripts=1,
        )
    )
    assert found.closed is not None and found.closed.actors["mine"].episodes == 1
    assert found.closed.actors["mine"].real == 0.25 and found.curve is None


def test_a_split_without_recordings_says_how_to_mend() -> None:
    made = gym()
    made.splits["dev"] = ()
    with pytest.raises(UserError, match="fit with held_out > 0"):
        asyncio.run(measure_gym(made, split="dev"))


def test_files_and_back(report: DreamReport, tmp_path: Path) -> None:
    paths = report.save(tmp_path)
    assert sorted(p.name for p in paths) == ["report.html", "report.json", "report.md"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["report.html", "report.json", "report.md"]
    again = DreamReport.load(tmp_path)
    assert again.to_json() == report.to_json()
    assert to_html(again) == to_html(report) and to_markdown(again) == to_markdown(report)
    with pytest.raises(UserError, match="There is no report"):
        DreamReport.load(tmp_path / "nowhere")
    (tmp_path / "report.json").write_text("{")
    with pytest.raises(UserError, match="is damaged"):
        DreamReport.load(tmp_path)
    (tmp_path / "report.json").write_text('{"format": 99}')
    with pytest.raises(UserError, match="has format 99"):
        DreamReport.load(tmp_path)


class Page(html.parser.HTMLParser):
    """Checks that tags nest, and gathers tags and text."""

    VOID = ("meta", "line", "circle", "polyline", "polygon")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, Any]]] = []
        self.text = ""
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_is_whole_self_contained_and_for_light_and_dark(report: DreamReport) -> None:
    page = to_html(report)
    found = Page(page)
    assert {t for t, _ in found.tags} >= {"svg", "table", "figure", "mark"}
    assert not [a for _, a in found.tags if "src" in a or "href" in a] and "http" not in page and "url(" not in page
    assert not [t for t, _ in found.tags if t in ("script", "link", "img", "iframe")]
    assert "prefers-color-scheme: dark" in page
    for words in ("Verdict:", "Gate", "Open loop", "Over the number of recordings", "Reality", "no_change", "About"):
        assert words in found.text
    numbers = [float(n) for n in re.findall(r' (?:cx|cy|x1|x2|y1|y2|x|y)="([^"]*)"', page)]
    assert numbers and all(math.isfinite(n) and -1 <= n <= 521 for n in numbers)


def bare(**parts: Any) -> DreamReport:
    logs = [episode((get("W1"), NASTY), ("Bye", ""), task_id=NASTY)]
    loop = asyncio.run(
        open_loop(logs, DOMAIN, RULES, (), Scripted(lambda m, a: Reply(f"{NASTY}!", confidence=0.5), name=NASTY))
    )
    return DreamReport(NASTY, NASTY, "0", NASTY, (loop,), about={NASTY: NASTY}, **parts)


def test_nothing_from_a_log_becomes_markup(tmp_path: Path) -> None:
    page = to_html(bare())
    assert "<script>" not in page and "&lt;script&gt;alert(1)" in page and "\x00" not in page
    Page(page)
    text = to_markdown(bare())
    assert "<script>" not in text and "&lt;script>" in text and r"\|" in text
    bare().save(tmp_path)


def test_what_was_not_measured_is_said_to_be_missing() -> None:
    page, text = Page(to_html(bare())).text, to_markdown(bare())
    for said in (page, text):
        assert "Not checked in a real environment." in said and "Not run." in said
    nothing = dataclasses.replace(bare(), loops=())
    Page(to_html(nothing))
    assert "Open loop" not in to_markdown(nothing)


def test_differences_are_marked_on_both_sides() -> None:
    left, right = marked('{"price": 10, "status": "open"}', '{"price": 12, "status": "open"}')
    assert "<mark>10</mark>" in left and "<mark>12</mark>" in right and left.count("<mark>") == 1
    assert marked("one two three", "a b c d e f g h") == ("one two three", "a b c d e f g h")
    assert marked("", "x") == ('<span class="soft">(nothing)</span>', "x")


def test_a_failed_gate_stands_in_the_report_with_its_mend() -> None:
    class Tolerant(Desk):
        def check(self, action: Action) -> Reply | None:
            return Reply("fine") if super().check(action) else None

    said = asyncio.run(gate(Tolerant, DOMAIN, [(task(1), [get("W1"), "Bye"])]))
    page, text = Page(to_html(bare(gate=said))).text, to_markdown(bare(gate=said))
    for written in (page, text):
        assert "were not refused" in written and "Put `ActionChecks`" in written
    assert "invalid actions: FAILED" in text and "determinism: passed" in text
    assert json.loads(json.dumps(bare(gate=said).to_json()))["gate"]["passed"] is False


class TolerantGym(Gym):
    """Lets the simulator answer what is no action."""

    def refuse(self, moment: Moment, action: Action) -> Reply | None:
        return None


class ElsewhereEnv(GymEnv):
    """Dreams another world in each session."""

    salt = 0

    async def reset(self, task: Task, seed: int) -> Observation:
        seen = await super().reset(task, derive(seed, ElsewhereEnv.salt))
        self.moment = dataclasses.replace(self.moment, anchor="", state=self.gym.state.start())
        return seen


class Moody(Scripted):
    """A simulator that answers by the hidden world."""

    def __init__(self) -> None:
        super().__init__(lambda m, a: doc("W1", price=m.noise(a.text) % 1000))


@pytest.mark.parametrize("broken", ["", "tolerant", "elsewhere"])
def test_a_gym_that_is_broken_on_purpose_is_stopped_by_the_gate_and_named_by_the_report(broken: str) -> None:
    made = gym()
    kind = TolerantGym if broken == "tolerant" else Gym
    library = Library([], made.domain, made.state) if broken == "elsewhere" else made.library
    bent = kind(made.domain, made.state, library, Moody(), splits=made.splits, held_out=made.held_out)

    def session(salt: int) -> EnvFactory:
        if broken != "elsewhere":
            return bent.env_factory(evaluation=True)

        def make() -> ElsewhereEnv:
            ElsewhereEnv.salt = salt
            return ElsewhereEnv(bent, evaluation=True)

        return make

    scripts = [(made.task(e.task_id, e.instruction), list(e.actions)) for e in made.episodes("train")[:3]]
    recorded = made.episodes("train")
    said = asyncio.run(gate(session(1), made.domain, scripts, sessions=[session(2)], recorded=recorded))
    found = {c.name for c in said.checks if not c.passed}
    assert found == {"": set(), "tolerant": {"invalid actions"}, "elsewhere": {"determinism"}}[broken], str(said)
    if broken:
        with pytest.raises(UserError, match="not fit to train in"):
            said.raise_for_failure()
        named = {"tolerant": "were not refused", "elsewhere": "are another world in session 1"}[broken]
        assert named in to_markdown(bare(gate=said)) and named in Page(to_html(bare(gate=said))).text


def test_the_report_measures_on_what_is_held_out(report: DreamReport) -> None:
    assert all(loop.leaked == 0 for loop in report.loops)
