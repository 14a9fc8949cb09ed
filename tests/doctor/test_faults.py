"""Each public fault is named, with place and mend, and sound set-ups are met with silence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from rlready.algorithms import GRPO
from rlready.doctor import CHECKS, Setup, audit
from rlready.policy.base import SamplingParams
from rlready.tasks.base import TaskSet
from rlready.types import Task
from tests.doctor.faults import healthy
from tests.doctor.faults.losses import Right
from tests.doctor.faults.registry import Fault
from tests.doctor.faults.world import all_faults

FAULTS: list[Fault] = all_faults()


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = healthy.few_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("planted", FAULTS, ids=lambda f: f.source)
def test_it_is_named(planted: Fault) -> None:
    found = audit(planted.build())
    hits = [f for f in found if f.check == planted.check and f.level == planted.level]
    assert hits, f"{planted.source}: {planted.check} was not found in\n{found}"
    (first, *_) = hits
    assert str(first.where), f"{planted.source}: no place in {first}"
    assert first.why == CHECKS[planted.check].why or first.why
    assert first.mend
    assert found.ok == (planted.level == "warning" and not found.errors)


def test_there_are_twenty_and_more() -> None:
    assert len({f.source for f in FAULTS}) >= 20
    assert {f.check for f in FAULTS} <= set(CHECKS)


SOUND: dict[str, Callable[[], Setup]] = {
    "chat, grpo": healthy.chat,
    "chat, rloo at 0.6": lambda: healthy.chat(algorithm="rloo", params=SamplingParams(temperature=0.6, max_tokens=6)),
    "chat, ppo": lambda: healthy.chat(algorithm="ppo"),
    "chat, reinforce, top-p": lambda: healthy.chat(
        algorithm="reinforce", params=SamplingParams(top_p=0.9, top_k=4, max_tokens=6)
    ),
    "choices, grpo": healthy.choices,
    "choices, ppo": lambda: healthy.choices(algorithm="ppo"),
    "turns, grpo": healthy.guess,
    "turns, rloo": lambda: healthy.guess(algorithm="rloo"),
    "turns, ppo": lambda: healthy.guess(algorithm="ppo"),
    "turns, an algorithm of one's own with KL": lambda: healthy.guess(algorithm=Right(kl=0.05)),
    "turns, minibatches and epochs": lambda: healthy.guess(algorithm=Right(minibatches=2, epochs=2)),
    "a rewritten context, grpo": lambda: healthy.guess(env=healthy.Memory),
    "a rewritten context, gspo": lambda: healthy.guess(env=healthy.Memory, algorithm="gspo"),
    "a rewritten context, ppo": lambda: healthy.guess(env=healthy.Memory, algorithm="ppo"),
    "KL in the reward": lambda: healthy.guess(algorithm=GRPO(kl=0.05, kl_in="reward")),
    "KL in the loss, against a stale sampler": lambda: healthy.guess(
        algorithm=GRPO(kl=0.05, anchor="start", mismatch="truncate", trust="clip")
    ),
    "choices, dapo": lambda: healthy.choices(algorithm="dapo"),
    "choices, dpo": lambda: healthy.choices(algorithm="dpo"),
    "choices, restem": lambda: healthy.choices(algorithm="restem"),
    "bytes": lambda: healthy.guess(
        policy=healthy.warm_policy(healthy.renderer(bpe=True)), params=SamplingParams(max_tokens=12)
    ),
}


@pytest.mark.parametrize("name", SOUND)
def test_silence(name: str) -> None:
    found = audit(SOUND[name]())
    assert not found.errors and not found.warnings, str(found)


@pytest.mark.parametrize("name", ["dapo", "dpo", "restem"])
def test_what_learns_from_some_answers_only_may_have_none(name: str) -> None:
    tasks = TaskSet(healthy.questions(), score=lambda task, trajectory: 0.0, name="hard")
    found = audit(healthy.chat(algorithm=name, tasks=tasks))
    assert "spread" in {f.check for f in found.warnings} and "mask" not in {f.check for f in found.errors}, str(found)


def own_form(task: Any, trajectory: Any) -> float:
    said, *rest = trajectory.turns[-1].text.split() or [""]
    return float(said == task.data["key"][::-1] and not rest)


def test_answers_of_a_form_of_their_own() -> None:
    """A note where the policy is right at times; checked exactly where the set-up writes right answers."""
    asked = [
        Task(healthy.question(i).prompt, {"answer": "door", "key": healthy.COLOURS[i % 4][::-1]}) for i in range(24)
    ]
    made = healthy.chat(tasks=TaskSet(asked, score=own_form))
    found = audit(made)
    assert not found.errors and "in a form of its own" in found.of("gold answers")[0].text
    worked = [Task(t.prompt, {**t.data, "solution": t.data["key"][::-1]}) for t in asked]
    assert not audit(replace(made, tasks=TaskSet(worked, score=own_form))).of("gold answers"), "the worked one is tried"
    assert not audit(replace(made, gold=lambda task: task.data["key"][::-1])).of("gold answers")
    (error,) = audit(replace(made, gold=lambda task: task.data["key"])).of("gold answers")
    assert error.level == "error" and "8 of 8 right answers are not graded right" in error.text and error.where


def test_nothing_is_left_behind() -> None:
    made = healthy.guess(algorithm=Right(kl=0.05, minibatches=2))
    learner: Any = made.policy.learner
    before, draws = learner.state_dict(), torch.get_rng_state()
    acts = {k: v.clone() for k, v in learner.weights().items()}
    audit(made)
    after = learner.state_dict()
    assert after["version"] == before["version"] == made.policy.sampler.version
    assert torch.equal(torch.get_rng_state(), draws)
    assert after["reference"] is None and after["optimizer"]["taken"] == before["optimizer"]["taken"]
    for name, value in learner.weights().items():
        assert torch.equal(value, acts[name]), name
    assert all(p.grad is None for p in learner.model.parameters())
    assert not audit(replace(made, seed=1)).errors, "and it can be examined again"
