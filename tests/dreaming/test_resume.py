"""Killed anywhere and resumed, `rlready dream train` ends as an uninterrupted run does, bit for bit."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rlready.algorithms.presets import GRPO
from rlready.checkpoint import load_state
from rlready.dream.gym import Gym
from tests.dreaming.desk_gym import make_gym, side, train
from tests.same_run import lines_of, same_run, untimed

SETTINGS = [
    "steps=4", "groups=2", "group_size=2", "clone_epochs=1", "check_every=2", "check_tasks=4", "real_rounds=2",
    "save_every=1", "max_tokens=24", "grpo.kl=0.05", "rl_lr=0.003", "tiny.dim=32", "tiny.layers=1", "tiny.heads=2",
    "tiny.max_len=512",
]  # fmt: skip


@pytest.fixture(scope="module")
def gym(tmp_path_factory) -> Path:
    return make_gym(tmp_path_factory.mktemp("desk"))


def start(gym: Path, root: Path) -> subprocess.Popen[str]:
    """The real command; it resumes where there is something to resume."""
    real = f"{gym.parent}/real.py"
    command = [
        sys.executable, "-m", "rlready", "dream", "train", str(gym), *SETTINGS, "--real", f"{real}:env", "--tasks",
        f"{real}:tasks", "--real-budget", "3000", "--root", str(root), "--quiet", "--json",
    ]  # fmt: skip
    begun = sorted(p.parent.name for p in root.glob("*/config.toml"))
    resume = ["--resume", begun[-1]] if begun else []
    env = os.environ | {"RLREADY_THREADS": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*command, *resume], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, cwd=gym.parent
    )


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    said, complaint = process.communicate(timeout=300)
    assert process.returncode == 0, complaint
    found: dict[str, Any] = json.loads(said)
    return found


def kill_when(process: subprocess.Popen[str], ready: Callable[[], bool], limit: float = 300.0) -> bool:
    """SIGKILL as soon as something is so; False where the process was done before."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        if process.poll() is not None:
            process.communicate()
            return False
        if ready():
            process.send_signal(signal.SIGKILL)
            process.communicate()
            return True
        time.sleep(0.001)
    process.kill()
    raise AssertionError("nothing to kill at")


def alike(a: Path, one: dict[str, Any], b: Path, two: dict[str, Any]) -> None:
    """Weights, metrics, episodes, what was spent and what was said: all the same but for the clock."""
    same_run(a, b, "checkpoints/dream-RL/step-00000004", "learner", "algorithm", "collector")
    same_run(a, b, "stages/dream-RL", "policy", "ledger", "gym")
    for path in (a / "model").iterdir():
        assert path.read_bytes() == (b / "model" / path.name).read_bytes(), path.name
    for name in ("result", "notes", "metrics", "difference", "spent", "seed"):
        assert untimed(one.get(name)) == untimed(two.get(name)), name
    for stage in ("check-clone", "check-trained", "check-trained-sampled"):
        found = [json.loads((run / "stages" / stage / "evaluation.json").read_text()) for run in (a, b)]
        assert untimed(found[0]) == untimed(found[1]), stage


@pytest.fixture(scope="module")
def whole(gym, tmp_path_factory) -> tuple[Path, dict[str, Any], float]:
    """An uninterrupted run, what it said, and what it took."""
    root, began = tmp_path_factory.mktemp("whole"), time.monotonic()
    said = finish(start(gym, root))
    (run,) = root.glob("*/")
    assert said["result"].startswith("Result, real and paired") and said["spent"]["mixing"] > 0
    steps = [line["step"] for line in lines_of(run, "metrics.jsonl") if line["stage"] == "dream RL"]
    assert steps == [0, 1, 2, 3, 4]
    return run, said, time.monotonic() - began


@pytest.mark.timeout(900)
def test_kills_in_cloning_in_a_real_round_and_before_the_last_check_change_nothing(gym, whole, tmp_path):
    run, said, _ = whole
    root = tmp_path / "killed"
    reached = [
        lambda: any(root.glob("*/stages/clone")),
        lambda: any(root.glob("*/checkpoints/dream-RL/step-00000002")),
        lambda: any(root.glob("*/stages/dream-RL/record.json")),
    ]
    for ready in reached:
        assert kill_when(start(gym, root), ready)
    again = finish(start(gym, root))
    (killed,) = root.glob("*/")
    alike(run, said, killed, again)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ten_kills_at_random_points_change_nothing(gym, whole, tmp_path):
    run, said, takes = whole
    chance, killed = random.Random(0), 0
    while killed < 10:
        root = tmp_path / f"run{killed}"
        at = time.monotonic() + chance.uniform(0.02, 0.98) * takes
        if not kill_when(start(gym, root), lambda at=at: time.monotonic() >= at):
            for path in root.rglob("*"):  # it was done before: another point
                if path.is_file():
                    path.unlink()
            continue
        killed += 1
        again = finish(start(gym, root))
        done = sorted(p.parent for p in root.glob("*/report.json"))[-1]
        alike(run, said, done, again)


class Crash(Exception):
    pass


def test_a_simulator_that_had_learned_goes_on_as_it_was(tmp_path):
    """A trained simulator that a real round changed: crashed in step 3 and resumed with the gym loaded afresh."""
    torch.set_num_threads(1)
    folder = make_gym(tmp_path, simulator="tiny", steps=8)
    options = {"steps": 4, "real_rounds": 2, "max_failures": 1.0, "check_every": 2, "enough": 1.1}

    def go(root: Path, crash: int | None, resume: str | None = None):
        gym = Gym.load(folder)
        gym.simulator.max_tokens = 8  # type: ignore[attr-defined]
        real = side(gym, held=3)
        update, count = GRPO.update, iter(range(10))

        async def crashes(self, policy, groups):
            if next(count) == crash:
                raise Crash
            return await update(self, policy, groups)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(GRPO, "update", crashes)
            return train(gym, root, resume=resume, real=real, force=True, **options)

    one, a = go(tmp_path / "a", None)
    with pytest.raises(Crash):
        go(tmp_path / "b", 2)  # the simulator had learned from a real round at step 1
    two, b = go(tmp_path / "b", None, "t-1")
    assert one.last_line == two.last_line and one.dream == two.dream and one.budget == two.budget
    same_run(a.dir, b.dir, "stages/dream-RL", "policy", "ledger", "gym")
    assert load_state(a.dir / "stages/dream-RL", "gym")["simulator"]  # it did learn
