"""Logs to a gym: what is written, that a kill changes nothing, and that nothing of the user's is lost."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlready.dream.gym import Gym
from rlready.dreaming import simulating
from rlready.dreaming.fit import Fitted, fit
from rlready.dreaming.options import FitOptions
from rlready.errors import UserError
from rlready.run import Interrupted
from rlready.worlds.fiction.play import play_logs, write_logs
from rlready.worlds.fiction.world import MIXED, FictionWorld

TINY = FitOptions(simulator="tiny", steps=4, curve=False, held_out=0.4)
QUIET = {"progress": "quiet"}
BY_CLOCK = {"verdict.json"}
SETUP = """
import json, os, sys
from dataclasses import replace
from rlready.dreaming import simulating
from rlready.cli.app import main

def small(config, steps):  # a model that learns nothing, quickly
    model = replace(config.model, dim=16, layers=1, heads=2)
    return replace(config, model=model, batch_tokens=512, max_steps=steps, epochs=50)

simulating._SAVE_SECONDS = 0.0  # a checkpoint after every step, so that kills meet them
simulating._limited = small
"""
FORKS = (
    SETUP
    + """
import rlready.dreaming.fit, rlready.dream.simulators.fitting  # once for all
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.argv = ["rlready", *json.loads(line)]
        try:
            main()
        except SystemExit as end:
            os._exit(end.code or 0)
        os._exit(0)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
)


@pytest.fixture(scope="module")
def log(tmp_path_factory) -> Path:
    """Forty episodes of a fictional service desk."""
    path = tmp_path_factory.mktemp("logs") / "desk.jsonl"
    write_logs(play_logs(FictionWorld(0, "desk"), MIXED, 40, 0), path)
    return path


@pytest.fixture(autouse=True, scope="module")
def one_thread_and_a_small_model():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RLREADY_THREADS", "1")
        patch.setenv("OMP_NUM_THREADS", "1")
        found: dict[str, Any] = {}
        exec(SETUP.partition("simulating._SAVE")[0], found)
        patch.setattr(simulating, "_limited", found["small"])
        yield


@pytest.fixture(scope="module")
def whole(log, tmp_path_factory) -> Path:
    """A gym with a trained simulator that was fitted without a break."""
    out = tmp_path_factory.mktemp("whole") / "gym"
    fit([log], out, TINY, **QUIET)
    return out


def contents(gym: Path) -> dict[str, bytes]:
    """Every file, but those that a clock decides."""
    return {str(p.relative_to(gym)): p.read_bytes() for p in gym.rglob("*") if p.is_file() and p.name not in BY_CLOCK}


def same(a: Path, b: Path) -> None:
    one, two = contents(a), contents(b)
    assert one.keys() == two.keys()
    assert [name for name in one if one[name] != two[name]] == []


def command(log: Path, out: Path) -> list[str]:
    options = ["--simulator", "tiny", "--steps", "4", "--no-curve", "--held-out", "0.4", "--quiet", "--json"]
    return ["dream", "fit", str(log), "--out", str(out), *options]


class Forks:
    """The real command line, loaded once and forked for every attempt."""

    def __init__(self) -> None:
        self.parent = subprocess.Popen(
            [sys.executable, "-c", FORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, arguments: list[str], kill_at: Callable[[], bool] | None = None) -> int:
        """Start it, kill it as soon as something is so, and return its exit code."""
        assert self.parent.stdin is not None and self.parent.stdout is not None
        self.parent.stdin.write(json.dumps(arguments) + "\n")
        self.parent.stdin.flush()
        child = int(self.parent.stdout.readline())
        while kill_at is not None:
            if kill_at():
                os.kill(child, signal.SIGKILL)
                break
            try:
                os.kill(child, 0)
            except ProcessLookupError:  # it was over before
                break
            time.sleep(0.0005)
        return int(self.parent.stdout.readline())


@pytest.fixture
def forks():
    made = Forks()
    yield made
    made.parent.communicate(timeout=60)


# ---------------------------------------------------------------------- what is written


def test_a_gym_is_whole_and_says_what_it_is(whole, log):
    fitted, gym = Fitted.load(whole), Gym.load(whole)
    assert fitted.understanding.runs == 40 and fitted.understanding.tools == 5
    assert gym.simulator.name == "tiny"
    assert fitted.facts["calibrated_on"] == (0 if gym.calibration is None else gym.calibration.count)
    assert set(gym.splits["train"]) | set(gym.splits["dev"]) | set(gym.splits["test"]) == {
        e.task_id for split in gym.splits for e in gym.episodes(split)
    }
    held = set(gym.splits["dev"]) | set(gym.splits["test"])
    assert not held & {e.task_id for e in gym.library.episodes.values()}
    assert [r["name"] for r in fitted.facts["backends"]] == ["tiny", "tiny", "nearest", "no_change"]
    assert fitted.facts["curve"] is None
    assert fitted.verdict.word in ("fit to train in", "needs more", "do not dream")
    assert not (whole.parent / "gym.part").exists()
    assert gym.about["logs"] == [str(log)] and "seconds" not in (whole / "gym.json").read_text()


def test_an_episode_can_be_played(whole):
    from rlready.aio import run_sync

    gym = Gym.load(whole)
    task = gym.tasks("train").tasks[0]

    async def play():
        env = gym.env()
        first = await env.reset(task, 0)
        step = await env.step('<tool_call>{"name": "get_order", "arguments": {"order": "order_4"}}</tool_call>')
        await env.close()
        return first, step

    first, step = run_sync(play())
    assert first.messages[-1].text and step.observation.messages[-1].text


def test_the_same_again_is_the_same_to_the_byte(log, tmp_path):
    for name in ("a", "b"):
        fit([log], tmp_path / name, FitOptions(curve=False), seed=3, **QUIET)
    same(tmp_path / "a", tmp_path / "b")
    gym = fit([log], tmp_path / "d", FitOptions(held_out=0.9, curve=False), seed=4, **QUIET)
    assert gym.calibration is not None and gym.calibration.count >= 20
    assert Gym.load(tmp_path / "d").calibration == gym.calibration
    fit([log], tmp_path / "c", seed=4, **QUIET)
    curve = Fitted.load(tmp_path / "c").facts["curve"]
    assert [p["traces"] for p in curve["points"]][:3] == [0, 1, 4]
    assert contents(tmp_path / "a")["gym.json"] != contents(tmp_path / "c")["gym.json"]


def test_auto_takes_what_answers_held_out_steps_better(log, tmp_path):
    """Four steps of training lose against retrieval; the one that lost leaves nothing behind."""
    gym = fit([log], tmp_path / "gym", replace(TINY, simulator="auto"), **QUIET)
    assert gym.simulator.name == "retrieval" and "retrieval 0." in gym.about["simulator"]
    assert not (tmp_path / "gym" / "model").exists()


# ---------------------------------------------------------------------- kills


def test_a_kill_in_reading_in_training_and_at_the_end_changes_nothing(log, whole, tmp_path, forks):
    out = tmp_path / "gym"
    part = tmp_path / "gym.part"
    reached = [
        lambda: (part / "stages" / "read").exists(),
        lambda: (part / "checkpoints" / "simulator" / "step-00000002").exists(),
        lambda: any(part.glob("gym")) or any(part.glob(".gym*")),
    ]
    for ready in reached:
        assert forks.run(command(log, out), ready) == -signal.SIGKILL
        assert not (out / "gym.json").exists()
    assert forks.run(command(log, out)) == 0
    assert not part.exists()
    same(whole, out)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ten_kills_at_random_points_change_nothing(log, whole, tmp_path, forks):
    def begun(part: Path, after: float = 0.0) -> Callable[[], bool]:
        """Whether the fit has been under way for so long."""
        first: list[float] = []

        def so() -> bool:
            if not first and part.exists():
                first.append(time.monotonic())
            return bool(first) and time.monotonic() >= first[0] + after

        return so

    watch, ends = begun(tmp_path / "timing.part"), list[float]()
    assert (
        forks.run(
            command(log, tmp_path / "timing"), lambda: watch() and not ends and bool(ends.append(time.monotonic()))
        )
        == 0
    )
    takes = time.monotonic() - ends[0]
    chance, stopped = random.Random(0), Counter[str]()
    while stopped.total() < 10:
        out = tmp_path / f"gym{stopped.total()}"
        part = out.with_name(out.name + ".part")
        if forks.run(command(log, out), begun(part, chance.uniform(0, takes))) == 0:
            shutil.rmtree(out)  # a kill that came too late is tried again
            continue
        finished = (p.parent.name for p in part.glob("stages/*/record.json"))
        stopped[",".join(sorted((*finished, *(p.name for p in part.glob("checkpoints/*/step-*")))))] += 1
        assert forks.run(command(log, out)) == 0
        same(whole, out)
        assert not part.exists()
    assert len(stopped) >= 3, stopped  # the kills fell into different stages and steps of training


def test_training_goes_on_from_its_checkpoint(log, whole, tmp_path, monkeypatch):
    """A crash after the second step; the second attempt takes only the two steps that are left."""
    from rlready.dream.simulators.fitting import Fitting

    monkeypatch.setattr(simulating, "_SAVE_SECONDS", 0.0)
    taken, advance = [], Fitting.advance

    def counted(self: Fitting) -> dict[str, float]:
        if len(taken) == 2:
            taken.append(-1)
            raise RuntimeError("the power went")
        taken.append(self.step)
        return advance(self)

    monkeypatch.setattr(Fitting, "advance", counted)
    with pytest.raises(RuntimeError, match="power"):
        fit([log], tmp_path / "gym", TINY, **QUIET)
    fit([log], tmp_path / "gym", TINY, **QUIET)
    assert taken == [0, 1, -1, 2, 3]
    same(whole, tmp_path / "gym")


def test_ctrl_c_saves_and_says_how_to_go_on(log, whole, tmp_path, monkeypatch):
    from rlready.dream.simulators.fitting import Fitting

    advance = Fitting.advance

    def interrupted(self: Fitting) -> dict[str, float]:
        if self.step == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return advance(self)

    with monkeypatch.context() as patch:
        patch.setattr(Fitting, "advance", interrupted)
        with pytest.raises(Interrupted, match="same command again"):
            fit([log], tmp_path / "gym", TINY, **QUIET)
    saved = sorted(p.name for p in (tmp_path / "gym.part" / "checkpoints" / "simulator").iterdir())
    assert saved == ["step-00000003"]
    fit([log], tmp_path / "gym", TINY, **QUIET)
    same(whole, tmp_path / "gym")


# ---------------------------------------------------------------------- what is in the way


def test_a_finished_gym_is_kept_unless_it_is_forced(log, whole, tmp_path):
    out = tmp_path / "gym"
    fit([log], out, FitOptions(curve=False), **QUIET)
    (out / "report.json").write_text("{}")
    before = contents(out)
    with pytest.raises(UserError, match="--force"):
        fit([log], out, FitOptions(curve=False), **QUIET)
    assert contents(out) == before
    gym = fit([log], out, FitOptions(curve=False, perturb=("error=0.1",)), force=True, **QUIET)
    assert gym.perturb[0].rate == 0.1 and not (out / "report.json").exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["gym"]


def test_a_folder_that_is_no_gym_is_never_touched(log, tmp_path):
    out = tmp_path / "thesis"
    out.mkdir()
    (out / "chapter").write_text("one")
    with pytest.raises(UserError, match="no gym"):
        fit([log], out, force=True, **QUIET)
    assert (out / "chapter").read_text() == "one"


def test_an_unfinished_fit_of_another_kind_is_kept(log, tmp_path, monkeypatch):
    from rlready.dreaming import measuring

    with monkeypatch.context() as patch:
        patch.setattr(measuring, "calibrate", lambda *a: (_ for _ in ()).throw(RuntimeError("no power")))
        with pytest.raises(RuntimeError):
            fit([log], tmp_path / "gym", FitOptions(held_out=0.3, curve=False), **QUIET)
    with pytest.raises(UserError, match=r"held_out = 0\.3, and now it is 0\.2"):
        fit([log], tmp_path / "gym", FitOptions(curve=False), **QUIET)
    stages = tmp_path / "gym.part" / "stages"
    assert (stages / "learn" / "record.json").exists()
    os.utime(log, (1, time.time()))
    with pytest.raises(UserError, match="logs have changed"):
        fit([log], tmp_path / "gym", FitOptions(held_out=0.3, curve=False), **QUIET)
    fit([log], tmp_path / "gym", FitOptions(curve=False), force=True, **QUIET)
    assert not (tmp_path / "gym.part").exists()


def test_leftovers_of_a_delivered_gym_are_cleared(log, tmp_path, monkeypatch):
    """Killed between the rename and the removal of the part: the same command has nothing to do but clean."""
    from rlready.dreaming import fit as module

    with monkeypatch.context() as patch:
        patch.setattr(module, "remove_folder", lambda path: None)
        fit([log], tmp_path / "gym", FitOptions(curve=False), **QUIET)
    before = contents(tmp_path / "gym")
    assert (tmp_path / "gym.part").exists()
    fit([log], tmp_path / "gym", FitOptions(curve=False), **QUIET)
    assert contents(tmp_path / "gym") == before and not (tmp_path / "gym.part").exists()


# ---------------------------------------------------------------------- rewards and mistakes


def chat(task: str, said: str, reward: float | None = None, **more) -> str:
    record = {
        "task_id": task,
        "messages": [{"role": "user", "content": f"Do {task}."}, {"role": "assistant", "content": said}],
        **({} if reward is None else {"reward": reward}),
        **more,
    }
    return json.dumps(record)


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(line + "\n" for line in lines))
    return path


def test_a_verifier_gives_the_rewards(tmp_path):
    log = write(tmp_path / "a.jsonl", *(chat(f"t{i}", "yes" if i % 3 == 0 else "no") for i in range(30)))

    def score(task, trajectory):
        assert task.data["task_id"] == task.id and task.data["instruction"] == f"Do {task.id}."
        if task.id == "t1":
            raise RuntimeError("cannot say")
        return trajectory.turns[-1].text == "yes"

    options = FitOptions(verifier="here:score", curve=False)
    gym = fit([log], tmp_path / "gym", options, verifier=score, **QUIET)
    u = Fitted.load(tmp_path / "gym").understanding
    assert (u.judged, u.successes) == (29, 10)
    assert gym.reward_source == "verifier"


def test_rewards_come_from_a_file(tmp_path):
    log = write(tmp_path / "a.jsonl", *(chat(f"t{i}", "hm", id=f"r{i}") for i in range(12)))
    rewards = write(tmp_path / "r.csv", "id,reward", *(f"r{i},{i % 2}" for i in range(11)), "gone,1")
    fit([log], tmp_path / "gym", FitOptions(rewards=str(rewards), curve=False), **QUIET)
    u = Fitted.load(tmp_path / "gym").understanding
    assert (u.judged, u.successes) == (11, 5) and u.unmatched == ("gone",)


def test_dropped_records_are_named_by_file_line_and_reason(tmp_path):
    log = write(tmp_path / "a.jsonl", chat("t0", "a", 1), '{"broken": ', chat("t1", "b\u2028c", 0), chat("t2", "d", 1))
    fit([log], tmp_path / "gym", FitOptions(curve=False), **QUIET)
    fitted = Fitted.load(tmp_path / "gym")
    (lost,) = fitted.dropped
    assert (lost["file"], lost["line"]) == (str(log), 2) and "JSON" in lost["reason"]
    assert fitted.understanding.runs == 3 and fitted.understanding.dropped == 1


def test_one_task_is_said_to_be_too_few(tmp_path):
    log = write(tmp_path / "a.jsonl", *(chat("t", f"answer {i}", i % 2) for i in range(5)))
    gym = fit([log], tmp_path / "gym", **QUIET)
    fitted = Fitted.load(tmp_path / "gym")
    assert fitted.facts["backends"] == [] and fitted.facts["curve"] is None and gym.calibration is None
    assert fitted.verdict.word == "needs more" and "held out" in fitted.verdict.reasons[0]


def test_another_system_prompt_stands_before_the_instruction(tmp_path):
    def run(task: str, system: str) -> str:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": task}]
        return json.dumps(
            {"task_id": task, "messages": [*messages, {"role": "assistant", "content": "ok"}], "reward": 1}
        )

    log = write(tmp_path / "a.jsonl", run("a", "odd"), run("b", "common"), run("c", "common"))
    gym = fit([log], tmp_path / "gym", FitOptions(held_out=0.0, curve=False), **QUIET)
    assert gym.domain.rules == "common"
    assert {e.task_id: e.instruction for e in gym.episodes("train")} == {"a": "odd\n\na", "b": "b", "c": "c"}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"simulator": "retreival"}, "retrieval"),
        ({"simulator": "http://localhost:1/v1"}, "#MODEL"),
        ({"reward_source": "modle"}, "model"),
        ({"reward_source": "verifier"}, "--verifier"),
        ({"perturb": ("eror=0.1",)}, "error"),
        ({"held_out": 1.0}, "held_out"),
        ({"min_confidence": 2.0}, "min_confidence"),
        ({"step_seconds": -1.0}, "step_seconds"),
    ],
)
def test_mistakes_are_one_sentence(options, named):
    with pytest.raises(UserError, match=named):
        FitOptions(**options)


def test_missing_and_empty_logs(tmp_path):
    with pytest.raises(UserError, match="There is no file"):
        fit([tmp_path / "none.jsonl"], tmp_path / "gym", **QUIET)
    assert not (tmp_path / "gym.part").exists()
    log = write(tmp_path / "a.jsonl", '{"role"')
    with pytest.raises(UserError, match=r"a\.jsonl"):
        fit([log], tmp_path / "gym", **QUIET)
    assert not (tmp_path / "gym.part").exists()
    write(log, chat("t", "a", 1))
    fit([log], tmp_path / "gym", **QUIET)
