"""Training where the policy samples in a process of its own: rollouts go on while it learns; all else stays true."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from rlready.algorithms import ALGORITHMS, Mixed, PolicyGradient
from rlready.algorithms.credit import CREDITS
from rlready.algorithms.presets import GRPO, DrGRPO
from rlready.cli import app
from rlready.curriculum.samplers import Uniform
from rlready.errors import UserError
from rlready.policy.base import OptimizerConfig, Policy, SamplingParams
from rlready.policy.process import ProcessSampler
from rlready.policy.render import ChatRenderer
from rlready.policy.tiny import TinyConfig, TinyPolicy
from rlready.policy.tokenize import word_tokenizer
from rlready.rollout.collect import Collector
from rlready.run import Interrupted, Run
from rlready.seeds import derive
from rlready.tasks.base import TaskSet
from rlready.train import check_group, check_lag, train
from rlready.types import Row, Task
from tests.resume_child import DIGITS, TwoWords

torch.set_num_threads(1)
SHAPE = TinyConfig(dim=16, layers=1, heads=2, max_len=48)


class Counted(TwoWords):
    """Counts its steps."""

    steps = 0

    async def step(self, action: str) -> Any:
        Counted.steps += 1
        await asyncio.sleep(self.pause)
        return await super().step(action)

    pause = 0.0


class Slow(Counted):
    pause = 0.02


@dataclass(frozen=True)
class Watched(GRPO):
    """Tells where it learns, and lets something happen there."""

    happens: Callable[[int], None] | None = None
    threads: list[int] = field(default_factory=list, compare=False)

    def fit(self, policy: Policy, rows: Sequence[Row]) -> dict[str, float]:
        self.threads.append(threading.get_ident())
        if self.happens is not None:
            self.happens(len(self.threads))
        return super().fit(policy, rows)


def tiny() -> TinyPolicy:
    renderer = ChatRenderer(word_tokenizer(["digit again", *DIGITS], specials=("<s>", ">", "<end>")), end="<end>")
    return TinyPolicy.create(renderer, SHAPE, 7, OptimizerConfig(lr=1e-2))


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[ProcessSampler]:
    policy = tiny()
    assert policy.learner is not None
    sampler = ProcessSampler(policy.config, policy.learner.weights())
    yield sampler
    sampler.close()


def parts(sampler: ProcessSampler | None, max_lag: int = 1) -> tuple[TinyPolicy, Collector]:
    policy = tiny()
    if sampler is not None:
        policy = dataclasses.replace(policy, sampler=sampler)
    tasks = TaskSet([Task.of(f"digit {d}", digit=d) for d in DIGITS], name="digits")
    params = SamplingParams(max_tokens=4)
    collector = Collector(
        policy, Counted, tasks, Uniform(tasks, 5), group_size=4, params=params, seed=5, max_lag=max_lag
    )
    return policy, collector


def opened(root: Path, **kw: Any) -> Run:
    return Run.create("t", seed=5, root=root, progress="quiet", log_groups=None, **kw)


def logged(run: Run, name: str = "metrics") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.dir / f"{name}.jsonl").read_text().splitlines()]


def children() -> list[str]:
    """Command lines of this process's children."""
    out = []
    for pid in Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split():
        out.append(Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " "))
    return out


def test_rollouts_go_on_while_the_policy_learns(tmp_path: Path, elsewhere: ProcessSampler) -> None:
    played: list[int] = []

    def happens(step: int) -> None:
        before, end = Counted.steps, time.monotonic() + 5
        while step > 1 and Counted.steps == before and time.monotonic() < end:
            time.sleep(0.005)
        played.append(Counted.steps - before)

    policy, collector = parts(elsewhere, max_lag=1)
    collector.env = Slow
    algorithm = Watched(happens=happens)
    with opened(tmp_path) as run:
        assert train(policy, collector, algorithm, run, steps=6, groups_per_step=4) is policy
        steps = logged(run)
    assert all(ident != threading.get_ident() for ident in algorithm.threads)
    # The loop played on; where rollouts were quicker than learning, a batch was over before its update began.
    assert sum(n > 0 for n in played[1:]) >= 2, played
    assert policy.version == elsewhere.version == 6
    assert [m["step"] for m in steps] == list(range(1, 7)) and all(m["groups"] == 4 for m in steps)
    assert all(0 <= m["lag/mean"] <= m["lag"] <= 1 for m in steps) and steps[-1]["lag"] == 1
    assert all(0 <= m["trainer/wait"] <= 1 and 0 <= m["generator/idle"] <= 1 for m in steps)
    assert collector._ahead is None  # closed
    trained = sum(4 * m["groups"] for m in steps)  # an episode has a step or more
    assert run.spent("real") == collector.transitions >= trained  # what ended during updates was paid for, too
    assert steps[-1]["real"] >= trained


def test_inline_the_same_numbers_are_told_and_learning_stays_in_its_thread(tmp_path: Path) -> None:
    policy, collector = parts(None, max_lag=0)
    algorithm = Watched()
    with opened(tmp_path) as run:
        train(policy, collector, algorithm, run, steps=3, groups_per_step=4)
        steps = logged(run)
    assert set(algorithm.threads) == {threading.get_ident()}
    for m in steps:
        assert 0 < m["trainer/wait"] < 1 and 0 < m["generator/idle"] < 1 and m["lag"] == m["lag/mean"] == 0
        assert m["trainer/wait"] > 0.9 * (m["seconds"] / (m["seconds"] + m["update/seconds"]) - 0.1)


def test_it_learns(tmp_path: Path, elsewhere: ProcessSampler) -> None:
    policy, collector = parts(elsewhere, max_lag=2)
    with opened(tmp_path) as run:
        train(policy, collector, GRPO(), run, steps=80, groups_per_step=6)
        steps = logged(run)
    first, last = (sum(m["reward"] for m in some) / 5 for some in (steps[:5], steps[-5:]))
    assert last > first + 0.25 and max(m["lag"] for m in steps) == 2


def test_what_goes_wrong_in_the_thread_is_raised_as_it_is(tmp_path: Path, elsewhere: ProcessSampler) -> None:
    fault = RuntimeError("power cut")

    def happens(step: int) -> None:
        if step == 2:
            raise fault

    policy, collector = parts(elsewhere)
    with opened(tmp_path) as run, pytest.raises(RuntimeError, match="power cut") as caught:
        train(policy, collector, Watched(happens=happens), run, steps=4, groups_per_step=4)
    assert caught.value is fault and collector._ahead is None


def test_halting_goes_back_to_the_checkpoint(tmp_path: Path, elsewhere: ProcessSampler) -> None:
    def happens(step: int) -> None:
        if step == 3:
            raise FloatingPointError("nan")

    policy, collector = parts(elsewhere)
    with opened(tmp_path) as run:
        train(policy, collector, Watched(happens=happens), run, steps=9, groups_per_step=4, save_every=1)
        assert logged(run)[-1]["halted"] == 1.0 and logged(run)[-1]["step"] == 3
    assert policy.version == 2 and policy.learner is not None and policy.learner.version == 2


@pytest.mark.parametrize("how", ["crash", "ctrl-c"])
def test_no_task_is_lost_or_trained_on_twice_by_a_resume(tmp_path: Path, elsewhere: ProcessSampler, how: str) -> None:
    def happens(step: int) -> None:
        if step == 4 and how == "crash":
            raise RuntimeError("power cut")
        if step == 4:
            os.kill(os.getpid(), signal.SIGINT)

    policy, collector = parts(elsewhere, max_lag=2)
    with opened(tmp_path) as run, pytest.raises(RuntimeError if how == "crash" else Interrupted):
        train(policy, collector, Watched(happens=happens), run, steps=8, groups_per_step=4, save_every=3)
    again, collector = parts(elsewhere, max_lag=2)
    with opened(tmp_path, resume="t-1") as run:
        train(again, collector, Watched(), run, steps=8, groups_per_step=4, save_every=3)
        episodes, steps = logged(run, "trajectories"), logged(run)
    assert [m["step"] for m in steps] == list(range(1, 9)) and all(m["lag"] <= 2 for m in steps)
    first = 4 if how == "crash" else 5  # the crash lost step 4; Ctrl-C let it finish
    assert steps[first - 1]["lag"] <= 0 and again.version == 8
    assert run.spent("real") == collector.transitions >= 8 * 4 * 4
    seeds = [e["seed"] for e in episodes if e["index"] == 0]
    expected, visits = Uniform(collector.tasks, 5), dict.fromkeys(collector.tasks, 0)
    for seed in seeds:  # every draw of the curriculum once, in its order
        task = expected.next()
        assert seed == derive(5, "env", task.id, visits[task])
        visits[task] += 1
    assert len(seeds) == 8 * 4


def test_too_much_lag_is_refused_before_anything_is_played(tmp_path: Path) -> None:
    policy, collector = parts(None, max_lag=3)
    with opened(tmp_path) as run, pytest.raises(UserError, match=r"max_lag is 3, and grpo .* set max_lag=2"):
        train(policy, collector, GRPO(), run, steps=1, groups_per_step=1)
    assert collector.episodes == 0
    check_lag(GRPO(), 2)


def test_groups_with_nothing_to_compare_are_refused_before_anything_is_played(tmp_path: Path) -> None:
    """Every preset: where credit of single episodes is 0 for all, two are asked for."""
    policy, collector = parts(None, max_lag=0)
    collector.group_size = 1
    with opened(tmp_path) as run, pytest.raises(UserError, match=r"group_size is 1, and drgrpo compares .* least 2"):
        train(policy, collector, DrGRPO(), run, steps=1, groups_per_step=1)
    assert collector.episodes == 0
    alone = {name for name, kind in ALGORITHMS.items() if kind().least_group == 1}
    assert alone == {"reinforce", "ngrpo", "ppo", "vapo", "vineppo", "sft", "restem"}
    assert PolicyGradient(advantage="running").least_group == 1 and Mixed(by="reinforce").least_group == 1
    for advantage in CREDITS:
        rewards = [np.asarray([r]) for r in (1.0, 0.0)]
        taught = any(a.any() for a in CREDITS[advantage](rewards, PolicyGradient(advantage=advantage)))
        assert PolicyGradient(advantage=advantage).least_group == 2 - taught
    check_group(DrGRPO(), 2)


TASK = """
import rlready as rl

tasks = rl.TaskSet.from_records(
    [{"question": f"say {d}", "answer": d} for d in "0123"], prompt="question", score=rl.rewards.math("answer"))
"""


def test_the_command_line_trains_in_a_process_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: ProcessSampler
) -> None:
    monkeypatch.setenv("RLREADY_THREADS", "1")
    monkeypatch.chdir(tmp_path)
    Path("my_task.py").write_text(TASK)
    settings = ["steps=4", "groups=2", "group_size=4", "max_tokens=4", "tiny.dim=16", "tiny.layers=1", "save_every=2"]
    before = children()
    ran = CliRunner().invoke(app, ["train", "my_task.py:tasks", "--quiet", *settings, "max_lag=2", "sampler=process"])
    assert ran.exit_code == 0, ran.output + repr(ran.exception)
    assert children() == before  # nothing is left but what was there
    lines = [json.loads(line) for line in Path("runs/my_task-1/metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["step"] == 4 and lines[-1]["lag"] <= 2 and "generator/idle" in lines[-1]
    assert lines[-1]["eval/version"] == 4  # the last evaluation acted with what was learned
    refused = CliRunner().invoke(app, ["train", "my_task.py:tasks", "max_lag=9", "--algorithm", "cispo"])
    assert refused.exit_code == 2 and "max_lag is 9" in refused.stderr and "set max_lag=8." in refused.stderr
    assert not Path("runs/my_task-2").exists()
    wrong = CliRunner().invoke(app, ["train", "my_task.py:tasks", "sampler=elsewhere"])
    assert wrong.exit_code == 2 and "sampler must be one of inline, process" in wrong.stderr
