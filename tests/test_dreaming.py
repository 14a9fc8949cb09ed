"""Training in a dream: refused where it is no function of the actions, stopped where it flatters, resumed bit for bit.

The simulator is a script (the phone of `tests.dream`), so each fault can be put in by hand; the agent is a real tiny
transformer.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from rlready.algorithms import GRPO
from rlready.checkpoint import load_state
from rlready.dream.memory import DreamMemory
from rlready.dream.model import ExperienceModel
from rlready.dreaming import Dream, DreamOptions
from rlready.envs.base import Env, Observation, Script, Step
from rlready.errors import UserError
from rlready.experience.store import SYNTHETIC
from rlready.policy.base import OptimizerConfig, Policy, SampleRequest
from rlready.policy.render import ChatRenderer
from rlready.policy.tiny import TinyConfig, TinyPolicy
from rlready.policy.tokenize import word_tokenizer
from rlready.run import Run
from rlready.seeds import rng
from rlready.tasks.base import TaskSet
from rlready.types import Group, Message, Task
from tests.dream.dream_phone import ACTIONS, ScriptedSampler, Writer, form, logged, phone
from tests.same_run import assert_same_state, lines_of, same_run

WORDS = ("air_on", "air_off", "sim_out", "sim_in", "ok", "error", "unknown_action", "phone", "dead")
TASKS = TaskSet([Task((Message.user("phone dead"),), {"n": n}) for n in range(64)], name="phones")
OPTIONS = DreamOptions(seeds=2, proposals=4, check_every=2, check_tasks=24, replays=3)


class Phone(Env):
    """The real phone: what is broken is drawn from (task, seed)."""

    async def reset(self, task: Task, seed: int) -> Observation:
        self.left = list(rng(seed, "broken", task.id).choice([("air",), ("sim",), ("air", "sim")]))
        self.messages, self.steps = task.prompt, 0
        return Observation(self.messages, ACTIONS)

    async def step(self, action: str) -> Step:
        self.messages += (Message("assistant", action),)
        self.steps += 1
        if action == "done":
            return Step(Observation(self.messages, ACTIONS), float(not self.left), terminated=True)
        self.left = [word for word in self.left if f"fix {word}" != action]
        looked = f"{'air_on' if 'air' in self.left else 'air_off'} {'sim_out' if 'sim' in self.left else 'sim_in'}"
        self.messages += (Message("tool", looked if action == "look" else "ok"),)
        return Step(Observation(self.messages, ACTIONS), truncated=self.steps >= 18)


class World:
    name = "phone"
    splits: ClassVar[dict[str, TaskSet]] = {"train": TASKS}
    scripts: ClassVar[dict[str, Script]] = {}
    actions = ACTIONS
    vocabulary = WORDS
    closing = "done"

    def env(self) -> Env:
        return Phone()


def simulator(prompt: str, request: SampleRequest) -> str:
    """The true phone; asked for a new task it names one problem, which no log has alone."""
    return "phone dead <card> air <go>" if prompt.startswith("<new>") else phone(prompt, request)


def dream_of(run: Run, write: Writer, options: DreamOptions = OPTIONS) -> Dream:
    layout = form()
    sampler = ScriptedSampler(layout, write)
    model = ExperienceModel(layout, Policy(sampler, None), DreamMemory(layout))  # type: ignore[arg-type]
    logs = [logged(TASKS[i].id, success=i % 2 == 0, seed=i) for i in range(4)]
    model.memory.seed([e for e, _ in logs], [n for _, n in logs])
    return Dream(run, World(), model, [e for e, _ in logs], [n for _, n in logs], options)


def agent(seed: int = 1) -> TinyPolicy:
    torch.set_num_threads(1)
    words = word_tokenizer([" ".join(WORDS), " ".join(ACTIONS)], specials=("<s>", ">", "<end>"))
    config = TinyConfig(dim=16, layers=1, heads=2, max_len=96)
    return TinyPolicy.create(ChatRenderer(words, end="<end>"), config, seed, OptimizerConfig(lr=3e-3))


@dataclass(frozen=True)
class Hooked(GRPO):
    """GRPO that calls back before each update, with its number from 1."""

    before: Callable[[int], None] = lambda _: None

    async def update(self, policy: Policy, groups: list[Group]) -> dict[str, float]:
        assert policy.learner is not None
        self.before(policy.learner.version + 1)
        return await super().update(policy, groups)


def train(
    root: Path,
    write: Writer,
    *,
    steps: int = 4,
    before: Callable[[int], None] = lambda _: None,
    options: DreamOptions = OPTIONS,
    resume: str | None = None,
) -> tuple[str | None, Dream, TinyPolicy, Run]:
    policy = agent()
    with Run.create("d", seed=3, root=root, progress="quiet", resume=resume, log_groups=None) as run:
        dream = dream_of(run, write, options)
        with run.stage("dream RL"):
            halted = dream.train(policy, Hooked(before=before), TASKS, steps=steps, groups=4, group_size=4)
    return halted, dream, policy, run


CHECKPOINTS = "checkpoints/dream-RL"


def test_a_dream_that_is_no_function_of_the_actions_is_refused(tmp_path: Path) -> None:
    coin = itertools.count()

    def moody(prompt: str, request: SampleRequest) -> str:
        said = simulator(prompt, request)
        return said.replace("air_on", "air_off") if next(coin) % 3 == 0 else said

    with pytest.raises(UserError, match=r"same actions gave different episodes .*'air_o.*Decode greedily"):
        train(tmp_path, moody)
    assert not (tmp_path / "d-1" / CHECKPOINTS).exists()  # nothing was trained


def test_an_honest_dream_is_trained_in_and_each_transition_is_counted(tmp_path: Path) -> None:
    halted, dream, policy, run = train(tmp_path, simulator)
    assert halted is None and policy.version == 4 and dream.determinism is not None and dream.determinism.passed
    assert [step for step, _ in dream.watch.seen] == [0, 2, 4]
    metrics = lines_of(run.dir, "metrics.jsonl")
    assert [m["step"] for m in metrics] == [0, 1, 2, 3, 4] and metrics[-1]["taskgen/accepted"] == 1
    assert run.spent("real") == 0 and run.spent("check") > 3 * 24 and run.spent("dream") > run.spent("check")
    joined = [e for e in dream.model.memory.store if e.episode.source == SYNTHETIC]
    assert joined and {e.episode.version for e in joined} == {0, 1, 2}  # those of the last iteration are still staged


def test_a_dream_that_flatters_ever_more_is_stopped_and_the_policy_goes_back(tmp_path: Path) -> None:
    flatters = False

    def flattering(prompt: str, request: SampleRequest) -> str:
        said = simulator(prompt, request)
        return said.replace("<wrong>", "<right>") if flatters else said

    def before(update: int) -> None:
        nonlocal flatters
        flatters = update > 2  # the check after two iterations still finds it honest

    options = replace(OPTIONS, check_tasks=64, allowed=0.05)
    halted, dream, policy, run = train(tmp_path, flattering, steps=12, before=before, options=options)
    assert halted is not None and "It now learns the simulator's mistakes" in halted
    at = dream.watch.seen[-1][0]
    assert f"At step {at} " in halted and 4 <= at < 12
    assert policy.version == at - 2
    kept = run.dir / CHECKPOINTS / f"step-{at - 2:08d}"
    assert policy.learner is not None
    assert_same_state(dict(load_state(kept, "learner")), dict(policy.learner.state_dict()), "learner")
    assert lines_of(run.dir, "metrics.jsonl")[-1]["halted"] == 1.0
    first, *_, last = [seen.gap for _, seen in dream.watch.seen]
    assert last > 0.2 + first and abs(first) < 0.15
    assert any(f"Agreement at iteration {at}" in note for note in dream.notes())


def test_what_only_gets_harder_than_reality_is_not_stopped(tmp_path: Path) -> None:
    def harsh(prompt: str, request: SampleRequest) -> str:
        return simulator(prompt, request).replace("<right>", "<wrong>")

    halted, dream, policy, _ = train(tmp_path, harsh, steps=2)
    assert halted is None and policy.version == 2 and dream.watch.seen[-1][1].gap < 0


def test_checks_leave_the_staged_dreams_alone_and_the_last_look_is_that_of_the_last_step(tmp_path: Path) -> None:
    _, dream, _, run = train(tmp_path, simulator, steps=3)
    assert [step for step, _ in dream.watch.seen] == [0, 2, 3]
    metrics = lines_of(run.dir, "metrics.jsonl")
    assert [m["memory/staged"] for m in metrics if m["step"]] == [0, 16, 16]  # 4 groups of 4; no check


def test_interrupted_and_resumed_equals_uninterrupted(tmp_path: Path) -> None:
    """Weights, curriculum, generator, co-evolved memory, agreement: all that is saved, and all that was logged."""

    def fail(update: int) -> None:
        if update == 6:
            raise RuntimeError("power cut")

    options = DreamOptions(seeds=2, proposals=4, check_every=2, check_tasks=6, replays=2)
    _, whole, policy, run = train(tmp_path, simulator, steps=6, options=options)
    with pytest.raises(RuntimeError, match="power cut"):
        train(tmp_path, simulator, steps=6, before=fail, options=options)
    _, again, resumed, _ = train(tmp_path, simulator, steps=6, options=options, resume="d-2")
    last = f"{CHECKPOINTS}/step-00000006"
    same_run(tmp_path / "d-1", tmp_path / "d-2", last, "learner", "collector", "algorithm")
    state = load_state(tmp_path / "d-1" / last, "collector")
    assert state["memory"]["dreams"] and state["generator"]["asked"] == 24  # there is something to compare
    assert [e.id for e in whole.model.memory.store] == [e.id for e in again.model.memory.store]
    assert whole.watch.seen == again.watch.seen and len(whole.watch.seen) == 4
    read = dream_of(run, simulator)
    read.load_state_dict(json.loads(json.dumps(again.state_dict())))
    assert (read.metrics(), read.notes()) == (again.metrics(), again.notes())
    assert policy.learner is not None and resumed.learner is not None
    assert_same_state(dict(policy.learner.state_dict()), dict(resumed.learner.state_dict()), "learner")
    assert run.spent("dream") > 0
