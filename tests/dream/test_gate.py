"""The gate: a healthy dream passes; each check is failed by a dream broken in just that way, and says so."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import random
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytest

from rlready.dream.base import Action, Reply
from rlready.dream.gate import GateReport, gate
from rlready.dream.measure.invalid import invalid_actions, told
from rlready.envs.base import Env, Observation, Step
from rlready.errors import EnvError, UserError
from rlready.types import Message, Task
from tests.dream.measure.desk import DOMAIN, LIST, READS, Desk, cancel, doc, episode, get, task

SCRIPTS = [(task(n), [LIST, get(f"W{n}"), cancel(f"W{n}"), "Done."]) for n in range(4)]
SCRIPTS += [(task(n), [get(f"W{n}"), "It has been sent."]) for n in range(4)]
RECORDED = [
    episode((LIST, '["W1"]'), (get("W1"), doc()), ("Bye", "")),
    episode(
        (
            '<tool_call>{"name": "find", "arguments": {}}</tool_call>',
            'Error: there is no tool "find". The tools are: x.',
        ),
        ("Bye", ""),
        errors=(0,),
    ),
]


def check(env: Callable[[], Env], scripts: Any = SCRIPTS, **options: Any) -> GateReport:
    options = {"recorded": RECORDED, "reads": READS, "sessions": [env], **options}
    return asyncio.run(gate(env, DOMAIN, scripts, **options))


def failed(report: GateReport) -> set[str]:
    return {c.name for c in report.checks if not c.passed}


class Wrapped(Env):
    """Another environment inside, to be broken in one way."""

    def __init__(self) -> None:
        self.inner = Desk()

    async def reset(self, task: Task, seed: int) -> Observation:
        return await self.inner.reset(task, seed)

    async def step(self, action: str) -> Step:
        return await self.inner.step(action)


def test_a_healthy_dream_passes_all() -> None:
    report = check(Desk, real=Desk, fingerprint=DOMAIN.fingerprint)
    assert report.passed, str(report)
    report.raise_for_failure()
    found = report.check("invalid actions").measured
    assert {k.split("/")[0] for k in found if "/" in k} == {
        "malformed",
        "unknown_tool",
        "missing_argument",
        "unknown_argument",
        "wrong_type",
    }
    assert all(v == 1 for k, v in found.items() if "/" in k)
    assert report.check("determinism").measured["reward_variance"] == 0
    assert len(report.transcripts) == len(SCRIPTS) and not any(c.notes for c in report.checks)


# ---------------------------------------------------------------------- determinism


class Noisy(Desk):
    """Draws a reply's noise from the process, not from the world."""

    def reply(self, action: Action) -> str:
        if action.tool == "get_order" and random.random() < 0.5:
            self.document = {**self.document, "price": self.document["price"] + 1}
        return super().reply(action)


def test_noise_that_is_not_the_worlds_fails_determinism_alone() -> None:
    report = check(Noisy)
    assert failed(report) >= {"determinism"}
    text = report.check("determinism").failures[0]
    assert "differ within a group" in text and "price" in text


def test_another_world_each_session_fails_determinism_and_only_that() -> None:
    report = check(Desk, sessions=[lambda: Desk(salt="another session")])
    assert failed(report) == {"determinism"}
    assert "are another world in session 1: task t" in report.check("determinism").failures[0]
    assert report.check("determinism").measured["different"] == 0  # within a group all is well: only sessions tell


def test_another_world_in_a_later_process_is_known_by_its_transcripts() -> None:
    before = check(Desk).transcripts
    assert check(Desk, sessions=(), known=before).passed
    later = check(lambda: Desk(salt="a later process"), sessions=(), known=before)
    assert failed(later) == {"determinism"} and "than in an earlier session" in later.check("determinism").failures[0]


class Leaky(Desk):
    """Keeps something between episodes: the price rises with every look of whatever episode."""

    looks = 0

    def reply(self, action: Action) -> str:
        if action.tool == "get_order":
            Leaky.looks += 1
            return json.dumps({**self.document, "price": 10 + Leaky.looks // 40})
        return super().reply(action)


class Neighbourly(Desk):
    """Answers by how many episodes run at the same time: alone and in a uniform group nothing shows."""

    running: ClassVar[set[str]] = set()

    async def reset(self, task: Task, seed: int) -> Observation:
        Neighbourly.running.add(task.id)
        return await super().reset(task, seed)

    async def close(self) -> None:
        Neighbourly.running.discard(self.order.replace("W", "t"))

    def reply(self, action: Action) -> str:
        found = super().reply(action)
        return found + "?" * (len(Neighbourly.running) > 1) if action.tool == "get_order" else found


def test_state_kept_between_episodes_and_neighbours_that_matter_fail_determinism() -> None:
    Leaky.looks = 0
    assert "determinism" in failed(check(Leaky))
    Neighbourly.running = set()
    report = check(Neighbourly)
    assert any("when played among others" in f for f in report.check("determinism").failures)


class Forgetful(Desk):
    """What a question hears depends on what was asked before it."""

    def reply(self, action: Action) -> str:
        return json.dumps([self.turns]) if action.tool == "list_orders" else super().reply(action)


def test_answers_about_the_world_that_depend_on_the_order_of_asking_fail_determinism() -> None:
    report = check(Forgetful)
    assert failed(report) >= {"determinism"}
    assert "was asked before" in report.check("determinism").failures[0]
    assert "determinism" not in failed(check(Forgetful, reads=frozenset()))  # the same actions get the same replies


class Dead(Desk):
    async def reset(self, task: Task, seed: int) -> Observation:
        raise EnvError("the model is not loaded")


def test_nothing_passes_for_want_of_a_case() -> None:
    assert failed(check(Desk, scripts=[], recorded=[])) == {"determinism", "format", "invalid actions"}
    report = check(Dead)
    assert "could not be played: the model is not loaded" in report.check("determinism").failures[-1]
    assert failed(report) >= {"determinism", "format"}


# ---------------------------------------------------------------------- format


class OtherTemplate(Desk):
    """Shows the tools in words of its own."""

    def first(self, words: str) -> tuple[Message, ...]:
        system, *rest = self.domain.prompt(words)
        return (Message("system", system.text.replace("You can call tools.", "Tools are at your service.")), *rest)


class AsUser(Desk):
    """Shows what a tool returned as if the user had said it."""

    def show(self, action: Action, reply: Reply, index: int) -> Message:
        return Message.user(reply.text)


class Unnumbered(Desk):
    def show(self, action: Action, reply: Reply, index: int) -> Message:
        return dataclasses.replace(super().show(action, reply, index), tool_call_id="call")


class Trimming(Desk):
    """Shows the agent something else than it wrote."""

    async def step(self, action: str) -> Step:
        before = len(self.messages)
        step = await super().step(action)
        seen = list(step.observation.messages)
        seen[before] = Message("assistant", action.removeprefix("<tool_call>"))
        self.messages = tuple(seen)
        return dataclasses.replace(step, observation=Observation(seen))


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (OtherTemplate, "the first observation is not the template's: message 0 is system"),
        (AsUser, "step 1 shows its reply as user message, the template as tool message call_1_0"),
        (Unnumbered, "step 1 shows its reply as tool message call, the template as tool message call_1_0"),
        (Trimming, "step 1 does not show the action as it was written"),
    ],
)
def test_another_template_fails_format(broken: type[Desk], says: str) -> None:
    report = check(broken)
    assert "format" in failed(report) and "determinism" not in failed(report)
    assert says in report.check("format").failures[0]


def test_a_real_environment_that_shows_another_thing_fails_format() -> None:
    report = check(Desk, real=OtherTemplate)
    assert failed(report) == {"format"} and "the first observations differ" in report.check("format").failures[0]
    report = check(Desk, real=AsUser)
    assert failed(report) == {"format"} and "the real ones" in report.check("format").failures[0]


class Limited(Desk):
    async def reset(self, task: Task, seed: int) -> Observation:
        return Observation((await super().reset(task, seed)).messages, actions=["yes", "no"])


def test_another_set_of_flags_fails_format() -> None:
    report = check(Desk, real=Limited)
    assert failed(report) == {"format"} and "only the real environment limits decoding" in str(report)
    report = check(Desk, fingerprint="0" * 16)
    assert failed(report) == {"format"} and f"are {DOMAIN.fingerprint} here and {'0' * 16} in the run" in str(report)


def test_recorded_actions_in_another_syntax_fail_format() -> None:
    other = episode(('<tool_call>{"name":"get_order","arguments":{"order_id":"W1"}}</tool_call>', doc()), ("Bye", ""))
    report = check(Desk, recorded=[*RECORDED, other])
    assert failed(report) == {"format"} and "1 of 4 recorded actions do not parse and render back" in str(report)
    broken = episode(("<tool_call>{get_order}</tool_call>", doc()), ("Bye", ""))
    assert failed(check(Desk, recorded=[broken])) == {"format"}
    refused = dataclasses.replace(broken, replies=("Error: The tool call is not valid JSON.", ""), errors=(0,))
    assert check(Desk, recorded=[*RECORDED, refused]).passed  # an agent may have written it, if it was told so


# ---------------------------------------------------------------------- invalid actions


class Tolerant(Desk):
    """Takes any action for a good one."""

    def check(self, action: Action) -> Reply | None:
        return Reply(json.dumps({"status": "ok"})) if super().check(action) else None


class Moved(Desk):
    """Refuses, and changes something all the same."""

    def check(self, action: Action) -> Reply | None:
        found = super().check(action)
        if found is not None:
            self.document = {**self.document, "price": 0}
        return found


class Paying(Wrapped):
    """Pays for every step, the refused ones included."""

    async def step(self, action: str) -> Step:
        return dataclasses.replace(await self.inner.step(action), reward=0.1)


class Generous(Desk):
    """Takes silence for success."""

    async def step(self, action: str) -> Step:
        step = await super().step(action)
        return dataclasses.replace(step, reward=1.0) if not action else step


class Refusing(Desk):
    """Refuses everything: no invalid action gets past it."""

    def check(self, action: Action) -> Reply | None:
        return Reply("Error: not now.") if action.tool else super().check(action)


class OtherWords(Desk):
    def check(self, action: Action) -> Reply | None:
        return Reply("Error: 404") if super().check(action) else None


def test_a_dream_that_tolerates_bad_actions_fails_that_check_and_only_that() -> None:
    report = check(Tolerant)
    assert failed(report) == {"invalid actions"}
    failures = report.check("invalid actions").failures
    kinds = {f.split(":")[0] for f in failures}
    assert kinds >= {"malformed", "unknown_tool", "missing_argument", "unknown_argument", "wrong_type"}
    assert "100% of" in failures[0] and '{"status": "ok"}' in failures[0]
    with pytest.raises(UserError, match=r"not fit to train in[\s\S]*were not refused[\s\S]*mend: Put `ActionChecks`"):
        report.raise_for_failure()


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (Moved, "changed the episode"),
        (Paying, "an episode of nothing but invalid actions earns"),
        (Generous, "the empty text ends the episode with reward 1"),
        (Refusing, "of valid actions are refused; of the recorded ones"),
    ],
)
def test_invalid_actions_must_change_and_earn_nothing_and_valid_ones_must_pass(broken: type[Env], says: str) -> None:
    report = check(broken)
    assert failed(report) == {"invalid actions"}
    assert any(says in f for f in report.check("invalid actions").failures), str(report)


def test_errors_must_be_of_the_recorded_kind() -> None:
    forms = {**DOMAIN.errors, "unknown_tool": dataclasses.replace(DOMAIN.errors["unknown_tool"], recorded=True)}
    domain = dataclasses.replace(DOMAIN, errors=forms)
    healthy = asyncio.run(gate(Desk, domain, SCRIPTS, recorded=RECORDED))
    assert healthy.check("invalid actions").passed
    report = asyncio.run(gate(OtherWords, domain, SCRIPTS, recorded=RECORDED))
    assert failed(report) == {"invalid actions"} and "in the logs it was" in str(report)


def test_made_actions_are_of_the_kind_they_are_said_to_be() -> None:
    from rlready.dream.actions import ActionChecks

    made = invalid_actions(DOMAIN, [get("W1"), cancel("W1")])
    for kind, texts in made.items():
        for text in texts:
            (read,) = DOMAIN.parse(text)
            found = ActionChecks(DOMAIN).kind_of(read)
            assert found is not None and found[0] == kind and ActionChecks(DOMAIN).kind_of(read) is not None
    assert set(itertools.chain(*made.values())).isdisjoint({get("W1"), cancel("W1")})


def test_told_knows_recorded_wordings_and_no_others() -> None:
    forms = {
        **DOMAIN.errors,
        "inadmissible": dataclasses.replace(DOMAIN.errors["inadmissible"], text="Nothing happens."),
    }
    is_error = told(dataclasses.replace(DOMAIN, errors=forms))
    assert is_error("Nothing happens.") and is_error("ERROR: x") and is_error('{"error": "x"}')
    assert not is_error("Nothing happens. You see a shelf.") and not is_error(doc()) and not is_error('{"error": null}')
    blank = {**DOMAIN.errors, "malformed": dataclasses.replace(DOMAIN.errors["malformed"], text="$value")}
    assert not told(dataclasses.replace(DOMAIN, errors=blank))("anything")


def test_json_round_trip_and_text() -> None:
    report = check(Tolerant, sessions=())
    again = GateReport.from_json(json.loads(json.dumps(report.to_json(), allow_nan=False)))
    assert again == report and not again.passed
    text = str(report)
    assert "gate: not passed" in text and "FAILED invalid actions" in text and "ok     determinism" in text
    assert "worlds across sessions were not compared" in text


def test_scripts_are_sequences_of_any_kind() -> None:
    tuples: Sequence[tuple[Task, Sequence[str]]] = [(t, tuple(a)) for t, a in SCRIPTS]
    assert check(Desk, scripts=tuples).passed
