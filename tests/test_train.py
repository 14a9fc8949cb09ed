"""The training loop: what it calls, logs, saves, counts; halting; and resuming bit for bit."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from rlready.algorithms.base import Algorithm
from rlready.evaluate import Evaluation
from rlready.policy.base import Policy
from rlready.run import Run
from rlready.stopping import EntropyFall, KLJump, NoAction, RewardFall
from rlready.train import train
from rlready.types import Group, Task, Trajectory, Turn, Verdict
from tests import resume_child as child
from tests.same_run import lines_of, same_run, untimed

# -- parts that only count -------------------------------------------------------------------------------------------


class Learner:
    def __init__(self) -> None:
        self.weight = torch.zeros(2)
        self.version = 0

    def weights(self) -> dict[str, Any]:
        return {"weight": self.weight.clone()}

    def state_dict(self) -> dict[str, Any]:
        return {"weight": self.weight.clone(), "version": self.version}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.weight, self.version = state["weight"].clone(), state["version"]


class Sampler:
    version = -1

    def load(self, state: Mapping[str, Any], version: int) -> None:
        self.weight, self.version = state["weight"].clone(), version


@dataclass
class Collector:
    """Group number n has reward n; every group costs three transitions."""

    transitions: int = 0
    groups: int = 0
    closed: int = 0

    async def collect(self, groups: int) -> list[Group]:
        out = []
        for _ in range(groups):
            self.groups += 1
            self.transitions += 3
            task = Task.of(str(self.groups))
            turn = Turn([0], [1], [-0.5], version=0)
            out.append(Group(task, [Trajectory(task, [turn], reward=float(self.groups), verdict=Verdict.RIGHT)]))
        return out

    async def aclose(self) -> None:
        self.closed += 1

    def metrics(self) -> dict[str, float]:
        return {"reward": float(self.groups), "episodes": 2.0, "env_steps": 6.0}

    def state_dict(self) -> dict[str, Any]:
        return {"transitions": self.transitions, "groups": self.groups}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.transitions, self.groups = state["transitions"], state["groups"]


@dataclass(frozen=True)
class Adds(Algorithm):
    """Adds the mean reward to the weight; from its own state, how often."""

    break_at: int = 0
    crash_at: int = 0
    counts: list[int] = field(default_factory=lambda: [0], compare=False)

    async def update(self, policy: Policy, groups: list[Group]) -> dict[str, float]:
        self.counts[0] += 1
        learner: Any = policy.learner
        learner.weight += sum(float(g.rewards.mean()) for g in groups)
        learner.version += 1
        if self.counts[0] == self.break_at:
            learner.weight += math.nan
            raise FloatingPointError("gradient norm is nan")
        if self.counts[0] == self.crash_at:
            raise RuntimeError("power cut")
        policy.sync()
        return {"kl/behaviour": 0.01 * self.counts[0], "entropy": 1.0 / self.counts[0] ** 3}

    def state_dict(self) -> dict[str, Any]:
        return {"counts": self.counts[0]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.counts[0] = state["counts"]


def parts():
    return Policy(Sampler(), None, Learner()), Collector()  # type: ignore[arg-type]


def lines(run: Run):
    return [json.loads(line) for line in (run.dir / "metrics.jsonl").read_text().splitlines()]


def opened(tmp_path, **kw):
    return Run.create("t", seed=3, root=tmp_path, progress="quiet", **kw)


def test_the_loop_collects_updates_logs_and_counts(tmp_path):
    policy, collector = parts()
    with opened(tmp_path) as run:
        out = train(policy, collector, Adds(), run, steps=3, groups_per_step=2)
        logged = lines(run)
        assert out is policy and policy.version == 3
        # groups 1+2, 3+4, 5+6
        assert policy.learner.weight.tolist() == [21.0, 21.0] and policy.sampler.weight.tolist() == [21.0, 21.0]
        assert [m["step"] for m in logged] == [1, 2, 3]
        assert [m["reward"] for m in logged] == [2, 4, 6]
        assert [m["real"] for m in logged] == [6, 12, 18] and run.spent("real") == 18
        assert logged[0]["update/kl/behaviour"] == 0.01 and logged[0]["update/seconds"] >= 0
        assert collector.closed == 1
        assert (run.dir / "trajectories.jsonl").read_text().count("\n") == 6


def test_dream_transitions_are_not_real_ones(tmp_path):
    with opened(tmp_path) as run:
        train(*parts(), Adds(), run, steps=2, groups_per_step=1, ledger="dream")
        assert run.spent("real") == 0 and run.spent("dream") == 6


def evaluator_of(seen):
    async def evaluator(policy: Policy) -> Evaluation:
        seen.append(policy.version)
        return Evaluation(0.1 * policy.version, (0.0, 1.0), 0.5, n=10, excluded=0, env_steps=7, version=policy.version)

    return evaluator


@pytest.mark.parametrize(("every", "expected"), [(0, [0, 5]), (2, [0, 2, 4, 5]), (1, [0, 1, 2, 3, 4, 5])])
def test_evaluation_runs_at_the_start_when_asked_and_at_the_end(tmp_path, every, expected):
    seen: list[int] = []
    with opened(tmp_path) as run:
        train(*parts(), Adds(), run, steps=5, groups_per_step=1, evaluator=evaluator_of(seen), eval_every=every)
        assert seen == expected
        logged = {m["step"]: m.get("eval/version") for m in lines(run)}
        assert logged == {s: (s if s in expected else None) for s in range(6)}
        assert run.spent("eval") == 7 * len(expected) and run.spent("real") == 15


def checkpoints(run):
    return sorted(int(p.name.split("-")[1]) for p in (run.dir / "checkpoints" / "run").glob("step-*"))


def test_checkpoints_at_start_at_intervals_and_at_the_end(tmp_path):
    with opened(tmp_path, keep=10) as run:
        train(*parts(), Adds(), run, steps=5, groups_per_step=1, save_every=2)
        assert checkpoints(run) == [0, 2, 4, 5]
    with opened(tmp_path, keep=10) as run:
        train(*parts(), Adds(), run, steps=3, groups_per_step=1)
        assert checkpoints(run) == [0, 3]


# -- halting ---------------------------------------------------------------------------------------------------------


def test_a_gradient_that_is_not_finite_goes_back_to_the_last_checkpoint(tmp_path, capsys):
    policy, collector = parts()
    with Run.create("t", seed=3, root=tmp_path, progress="lines") as run:
        train(policy, collector, Adds(break_at=4), run, steps=9, groups_per_step=1, save_every=2)
        assert policy.learner.weight.tolist() == [3.0, 3.0]  # groups 1 and 2: the state after step 2
        assert policy.version == 2 and policy.sampler.weight.tolist() == [3.0, 3.0]
        assert [m["step"] for m in lines(run)] == [1, 2, 3, 4]
        assert lines(run)[-1]["halted"] == 1.0
        assert max(checkpoints(run)) == 2  # nothing was saved after the fault
        assert collector.closed == 1
    out, err = capsys.readouterr()
    assert "halted at step 4: a gradient is not finite (gradient norm is nan)" in " ".join((out + err).split())


def test_without_a_later_checkpoint_it_goes_back_to_the_start(tmp_path):
    policy, collector = parts()
    with opened(tmp_path) as run:
        train(policy, collector, Adds(break_at=2), run, steps=9, groups_per_step=1)
        assert policy.learner.weight.tolist() == [0.0, 0.0] and policy.version == 0


def test_a_stop_rule_halts_before_the_step_is_saved(tmp_path):
    policy, collector = parts()
    with opened(tmp_path, keep=10) as run:
        rules = [EntropyFall(share=0), KLJump(limit=0.025)]
        train(policy, collector, Adds(), run, steps=9, groups_per_step=1, save_every=1, stop_rules=rules)
        assert checkpoints(run) == [0, 1, 2]  # kl is .03 at step 3
        assert policy.version == 2


def test_rules_by_hand():
    assert KLJump(limit=0.5)({"update/kl/behaviour": 0.4}) is None
    assert "update/kl/behaviour is 0.6" in (KLJump(limit=0.5)({"update/kl/behaviour": 0.6}) or "")
    assert KLJump()({}) is None

    entropy = EntropyFall(patience=2, share=0.1)
    fed = [entropy({"update/entropy": e}) is not None for e in (2.0, 0.1, 0.5, 0.1, 0.1)]
    assert fed == [False, False, False, False, True]

    idle = NoAction(patience=1, least=0.5)
    assert idle({"episodes": 10, "env_steps": 5}) is None and idle({}) is None
    assert "0.4 environment steps" in (idle({"episodes": 10, "env_steps": 4}) or "")

    fall = RewardFall(patience=1, share=0.5)
    assert [fall({"reward": r}) is not None for r in (0.2, 0.8, 0.5, 0.3)] == [False, False, False, True]


def test_a_rule_remembers_across_a_checkpoint():
    a = EntropyFall(patience=3, share=0.1)
    for e in (1.0, 0.01, 0.01):
        assert a({"update/entropy": e}) is None
    b = EntropyFall(patience=3, share=0.1)
    b.load_state_dict(json.loads(json.dumps(a.state_dict())))
    assert b({"update/entropy": 0.01}) is not None
    c = RewardFall(patience=1)
    c({"reward": 2.0})
    d = RewardFall(patience=1)
    d.load_state_dict(json.loads(json.dumps(c.state_dict())))
    assert d({"reward": 0.5}) is not None


def test_rules_are_part_of_the_checkpoint(tmp_path):
    rule = EntropyFall(patience=3, share=0.5)  # entropy is 1, 1/8, 1/27, 1/64: it fires at step 4
    with opened(tmp_path) as run, pytest.raises(RuntimeError, match="power cut"):
        train(*parts(), Adds(crash_at=3), run, steps=9, groups_per_step=1, save_every=1, stop_rules=[rule])
    policy, collector = parts()
    with Run.create("t", root=tmp_path, resume="t-1", progress="quiet") as run:
        fresh = EntropyFall(patience=3, share=0.5)
        train(policy, collector, Adds(), run, steps=9, groups_per_step=1, save_every=1, stop_rules=[fresh])
        assert [m["step"] for m in lines(run)] == [1, 2, 3, 4] and "halted" in lines(run)[-1]


# -- resuming --------------------------------------------------------------------------------------------------------


def test_an_exception_leaves_the_checkpoint_and_a_resumed_run_is_the_uninterrupted_one(tmp_path):
    whole, collector = parts()
    with opened(tmp_path) as run:
        train(whole, collector, Adds(), run, steps=4, groups_per_step=2, save_every=2)
        expected = lines(run)
    policy, collector = parts()
    with opened(tmp_path) as run, pytest.raises(RuntimeError, match="power cut"):
        train(policy, collector, Adds(crash_at=4), run, steps=4, groups_per_step=2, save_every=2)
    assert collector.closed == 1
    policy, collector = parts()
    with Run.create("t", root=tmp_path, resume="t-2", progress="quiet") as run:
        train(policy, collector, Adds(), run, steps=4, groups_per_step=2, save_every=2)
        assert [untimed(m) for m in lines(run)] == [untimed(m) for m in expected]
        assert run.spent("real") == 24
    assert torch.equal(policy.learner.weight, whole.learner.weight)


def test_a_finished_run_does_nothing_more(tmp_path):
    policy, collector = parts()
    with opened(tmp_path) as run:
        train(policy, collector, Adds(), run, steps=2, groups_per_step=1)
    policy, collector = parts()
    with Run.create("t", root=tmp_path, resume="t-1", progress="quiet") as run:
        train(policy, collector, Adds(), run, steps=2, groups_per_step=1)
        assert len(lines(run)) == 2 and policy.version == 2 and collector.groups == 2


# -- the same with real parts: tiny transformer, collector, run folder -----------------------------------------------


def assert_same_run(a: Path, b: Path) -> None:
    metrics, episodes = lines_of(a, "metrics.jsonl"), lines_of(a, "trajectories.jsonl")
    assert len(metrics) == 4 and len(episodes) == 4 * 4 * 4
    tokens = [t["completion_ids"] for e in episodes for t in e["turns"]]
    assert len({len(ids) for ids in tokens}) > 1 and len(set(map(str, tokens))) > 20  # there is something to compare
    same_run(a, b, "checkpoints/run/step-00000004", "learner", "algorithm", "collector")


@pytest.mark.parametrize("name", ["ppo", "reinforce"])
def test_two_steps_an_exception_and_two_more_equal_four(tmp_path, name):
    def fail():
        raise RuntimeError("power cut")

    whole, run = child.play(tmp_path, child.build(name), 4)
    with pytest.raises(RuntimeError, match="power cut"):
        child.play(tmp_path, child.build(name, fail, at=3), 4)
    again, _ = child.play(tmp_path, child.build(name), 4, resume="t-2")
    assert_same_run(tmp_path / "t-1", tmp_path / "t-2")
    for key, value in whole.learner.weights().items():
        assert torch.equal(value, again.learner.weights()[key]), key
    assert run.spent("real") == 4 * 4 * 4 * 2  # 4 steps of 4 groups of 4 episodes of 2 transitions, in both


def test_two_steps_a_real_kill_and_two_more_equal_four(tmp_path):
    def start(root, *more):
        command = [sys.executable, child.__file__, str(tmp_path / root), "reinforce", "4", *more]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    assert (done := start("a")).returncode == 0, done.stderr
    assert start("b", "--kill-at", "3").returncode == -signal.SIGKILL
    killed = tmp_path / "b" / "t-1"
    assert [p.name for p in sorted((killed / "checkpoints" / "run").glob("step-*"))] == [
        "step-00000000",
        "step-00000002",
    ]
    assert (done := start("b", "--resume", "t-1")).returncode == 0, done.stderr
    assert_same_run(tmp_path / "a" / "t-1", killed)


def test_another_seed_is_another_run(tmp_path):
    """The comparison above can fail: one step more or less changes weights and tokens."""
    child.play(tmp_path, child.build("reinforce"), 4)
    child.play(tmp_path, child.build("ppo"), 4)
    with pytest.raises(AssertionError):
        assert_same_run(tmp_path / "t-1", tmp_path / "t-2")
