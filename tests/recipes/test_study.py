"""Comparing arms: trained once, measured alike, counted from the ledger; a resumed study repeats nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from rlready.algorithms import SFT
from rlready.policy.tiny import TinyPolicy
from rlready.recipes.study import MODES, Study
from rlready.run import Run
from rlready.types import Row
from tests.recipes.say_digit import TASKS, SayDigit, tiny
from tests.same_run import assert_same_state, untimed

TEST = {"test": TASKS, "hard": TASKS.head(2)}


def opened(root: Path, resume: str | None = None) -> Run:
    return Run.create("study", seed=2, root=root, progress="quiet", resume=resume)


def study_of(run: Run) -> Study:
    return Study(run, SayDigit, TASKS, TEST, temperatures=(0.25, 0.5))


def taught(run: Run, policy: TinyPolicy, calls: list[str]) -> Callable[[], str]:
    """Training by demonstrations that costs 7 real transitions and 3 of checks, and is then halted."""

    def train() -> str:
        calls.append("trained")
        render = policy.renderer
        rows = [
            Row.from_segments([(render.render(t.prompt), 0.0), (render.encode_completion(t.data["digit"]), 1.0)])
            for t in TASKS
        ]
        SFT().fit_rows(policy, rows * 4, epochs=20, batch_tokens=60)
        run.spend(real=7, check=3)
        return "the dream flattered"

    return train


class Note:
    def __init__(self, text: str = "") -> None:
        self.text = text

    def state_dict(self) -> dict[str, Any]:
        return {"text": self.text}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.text = state["text"]


def test_arms_are_measured_alike_and_their_costs_are_the_ledgers(tmp_path: Path) -> None:
    calls: list[str] = []
    with opened(tmp_path) as run:
        study = study_of(run)
        study.arm("random", tiny())
        policy = tiny()
        arm = study.arm("taught", policy, taught(run, policy, calls))
        run.report(tables=study.tables(), metrics=study.metrics())
        assert run.spent("real") == 7  # measuring is not RL
        # Two arms, three episodes of two steps: dev at 2 temperatures; 4 tasks and 2 tasks in 3 modes.
        assert run.spent("measure") == 2 * 2 * (4 * 2 + 4 * 3 + 2 * 3)
    assert calls == ["trained"] and (arm.real, arm.checks, arm.halted) == (7, 3, "the dream flattered")
    assert arm.seconds > 0 and (study.arms["random"].real, study.arms["random"].halted) == (0, "")
    assert set(arm.scores) == {"test", "hard"} and all(set(by_mode) == set(MODES) for by_mode in arm.scores.values())
    assert arm.success() == arm.success("hard", "sampled") == 1.0 > study.arms["random"].success(mode="sampled")
    assert arm.scores["test"]["greedy"].settings["temperature"] == 0
    assert arm.scores["test"]["tuned"].settings["temperature"] == arm.temperature == 0.25  # the lowest of equals

    difference = study.difference("taught", "random", mode="sampled")
    assert difference.tasks == 4 and difference.difference == 1 - study.arms["random"].success(mode="sampled")

    numbers = study.metrics()
    assert numbers["test/taught/greedy"] == 1 and numbers["hard/random/sampled"] == study.arms["random"].success(
        "hard", "sampled"
    )
    assert (numbers["real/taught"], numbers["checks/taught"], numbers["temperature/taught"]) == (7, 3, 0.25)
    first, second = study.tables()
    assert "4 real tasks" in first.title and "2 real tasks" in second.title
    assert [row[0] for row in first.rows] == ["random", "taught"]
    assert (
        str(first.rows[1][1]).startswith("100") and "(T=0.25)" in str(first.rows[1][2]) and first.rows[1][4:6] == [7, 3]
    )


def test_a_resumed_study_trains_and_measures_nothing_twice(tmp_path: Path) -> None:
    calls: list[str] = []
    with pytest.raises(RuntimeError, match="power cut"), opened(tmp_path) as run:
        study = study_of(run)
        policy = tiny()
        study.arm("taught", policy, taught(run, policy, calls), {"note": Note("seen in training")})
        numbers = study.metrics()
        spent = run.spent("measure")
        raise RuntimeError("power cut")
    with opened(tmp_path, "study-1") as run:
        again = study_of(run)
        fresh = tiny(seed=9)
        note = Note()
        again.arm("taught", fresh, taught(run, fresh, calls), {"note": note})
        assert note.text == "seen in training"
        assert calls == ["trained"] and run.spent("measure") == spent and run.spent("real") == 7
        assert untimed(again.metrics()) == untimed(numbers)
        assert_same_state(dict(policy.learner.weights()), dict(fresh.learner.weights()), "weights")
        assert fresh.version == policy.version
        again.arm("random", tiny())  # and it goes on
        assert list(again.arms) == ["taught", "random"]
        assert again.draw(run.dir / "arms.png") == "arms.png"
    assert (run.dir / "arms.png").read_bytes().startswith(b"\x89PNG")


def test_an_arm_that_was_cut_in_training_is_trained_again(tmp_path: Path) -> None:
    calls: list[str] = []
    with pytest.raises(RuntimeError, match="power cut"), opened(tmp_path) as run:

        def cut() -> str:
            calls.append("cut")
            raise RuntimeError("power cut")

        study_of(run).arm("taught", tiny(), cut)
    with opened(tmp_path, "study-1") as run:
        policy = tiny()
        arm = study_of(run).arm("taught", policy, taught(run, policy, calls))
    assert calls == ["cut", "trained"] and arm.real == 7 and arm.success() == 1
