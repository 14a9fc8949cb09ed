"""`rlready dream train` as a person or a script meets it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from rlready.cli import app
from tests.dreaming.desk_gym import make_gym

DESK = Path(__file__).resolve().parents[2] / "rlready" / "worlds" / "fiction" / "desk.py"
SETTINGS = [
    "steps=2", "groups=2", "group_size=2", "clone_epochs=1", "check_every=0", "check_tasks=4", "real_rounds=0",
    "save_every=1", "max_tokens=24", "tiny.dim=32", "tiny.layers=1", "tiny.heads=2", "tiny.max_len=512",
]  # fmt: skip


WAYS = ("greedy", "sampled at 1")


def real(gym: Path) -> list[str]:
    return ["--real", f"{gym.parent}/real.py:env", "--tasks", f"{gym.parent}/real.py:tasks"]


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    monkeypatch.setenv("RLREADY_THREADS", "1")
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def gym(tmp_path_factory) -> Path:
    return make_gym(tmp_path_factory.mktemp("desk"))


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["dream", "train", *map(str, arguments)])


def refused(*arguments: object) -> str:
    """One sentence on stderr and exit code 2; no trace."""
    done = run(*arguments)
    assert done.exit_code == 2, (done.output, done.exception)
    assert "Traceback" not in done.output
    return " ".join(done.output.split())


@pytest.fixture(scope="module")
def finished(gym, tmp_path_factory) -> tuple[Path, Any]:
    """A run to its end, without reality, as JSON."""
    os.environ["RLREADY_THREADS"] = "1"
    root = tmp_path_factory.mktemp("runs")
    done = run(gym, *SETTINGS, "--root", root, "--quiet", "--json", "--force", "--perturb", "error=0.1")
    assert done.exit_code == 0, (done.output, done.exception)
    return root, done


# ---------------------------------------------------------------------- help and settings


def test_help_teaches():
    said = run("--help").output
    for words in ("First the gate", "--real-budget", "--force", "--resume", "rlready dream train gym", "KEY=VALUE"):
        assert words in said, words


def test_settings_can_be_shown_and_read_back(gym, tmp_path):
    shown = run(gym, "--show-config", "steps=7", "grpo.kl=0.01").stdout
    found = tomllib.loads(shown)
    assert found["steps"] == 7 and found["grpo"]["kl"] == 0.01 and found["tiny"]["dim"] == 96
    (tmp_path / "my.toml").write_text(shown)
    again = run(gym, "--show-config", "--config", tmp_path / "my.toml").stdout
    assert again == shown
    assert json.loads(run(gym, "--show-config", "--json").stdout)["steps"] == 60
    assert "ppo" in tomllib.loads(run(gym, "--show-config", "-a", "ppo").stdout)


# ---------------------------------------------------------------------- what is said


def test_json_is_json_alone(finished):
    root, done = finished
    said = json.loads(done.stdout)
    assert said["result"] == "Result: not checked in a real environment." and Path(said["run"]).parent == root
    assert "difference" not in said and set(said["metrics"]) == {"dream/clone", "dream/trained"}
    assert isinstance(said["notes"], list) and any("no evidence by itself" in n for n in said["notes"])
    written = json.loads((Path(said["run"]) / "report.json").read_text())
    assert written["metrics"] == said["metrics"]


def test_the_last_line_is_the_real_paired_result(gym, tmp_path):
    done = run(gym, *SETTINGS, *real(gym), "--real-budget", 3000, "--root", tmp_path, "--quiet")
    assert done.exit_code == 0, (done.output, done.exception)
    lines = done.stdout.strip().split("\n")
    assert lines[-1].startswith("Result, real and paired, dream RL against filtered cloning: ")
    assert "won" in lines[-1] and "of 12 tasks" in lines[-1]
    whole = " ".join(done.stdout.split())
    assert "of 3000 real transitions" in whole and "rlready runs show" in whole
    (folder,) = tmp_path.glob("*/")
    report = json.loads((folder / "report.json").read_text())
    assert {
        f"real/{who}, {how}" for who in ("filtered cloning", "after RL in the dream", "difference") for how in WAYS
    } <= set(report["metrics"])
    assert (folder / "model").is_dir() and done.stdout.split()[-1] in (folder / "report.md").read_text()


def test_a_trained_policy_goes_on_without_cloning(finished, gym, tmp_path):
    model = Path(json.loads(finished[1].stdout)["run"]) / "model"
    again = run(gym, *SETTINGS, "--policy", model, "--root", tmp_path, "--quiet", "--json")
    assert again.exit_code == 0, (again.output, again.exception)
    (folder,) = tmp_path.glob("*/")
    assert not (folder / "stages" / "clone").exists() and (folder / "stages" / "dream-RL").exists()


# ---------------------------------------------------------------------- mistakes


def test_mistakes_are_one_sentence_and_start_nothing(gym, tmp_path):
    root, empty = tmp_path / "runs", tmp_path / "empty"
    empty.mkdir()
    for arguments, named in (
        ((tmp_path / "none",), "There is no gym"),
        ((DESK,), "There is no gym"),
        ((gym, "--policy", "tinny"), 'There is no policy "tinny"'),
        ((gym, "--policy", "hf:"), "hf:NAME"),
        ((gym, "--policy", tmp_path / "none"), "There is no policy"),
        ((gym, "--tasks", f"{DESK}:tasks"), "there is no --real environment"),
        ((gym, "--real", f"{DESK}:Dask"), "Desk"),
        ((gym, "--real", "none.py:Desk"), "none.py"),
        ((gym, "--real", f"{DESK}:WORLD"), "is no environment"),
        ((gym, "--real", f"{DESK}:Desk", "--tasks", f"{DESK}:Desk"), "a TaskSet is wanted"),
        ((gym, "steps"), "Write key=value"),
        ((gym, "stps=3"), "steps"),
        ((gym, "steps=many"), "steps"),
        ((gym, "steps=-1"), "steps"),
        ((gym, "group_size=1"), "group_size"),
        ((gym, "-a", "gpro"), "grpo"),
        ((gym, "--reward-source", "modle"), "model"),
        ((gym, "--reward-source", "verifier"), "--verifier"),
        ((gym, "--min-confidence", "2"), "min_confidence"),
        ((gym, "--perturb", "eror=0.1"), "error"),
        ((gym, "--simulator", "retreival"), "retrieval"),
        ((gym, "--simulator", "tiny"), "no fitted simulator"),
        ((gym, "--verifier", "none.py:score"), "none.py"),
        ((gym, "--resume", "nobody"), "nobody"),
        ((gym, "--config", tmp_path / "none.toml"), "none.toml"),
    ):
        said = refused(*arguments, "--root", root, "--quiet")
        assert named in said, (arguments, said)
    assert not root.exists() or list(root.iterdir()) == []
    assert run(gym, "--real-budget=-1", "--root", root).exit_code == 2


def test_mistakes_that_are_found_later_are_one_sentence_too(gym, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    for arguments, named in (
        ((gym, "--policy", empty), str(empty.name)),
        ((gym, *real(gym), "--real-budget", 0), "A real budget of 0 transitions does not pay"),
        ((gym, *real(gym), "--real-budget", 20), "--real-budget"),
        ((gym, "tiny.dim=33"), "dim"),
        ((gym, "tiny.max_len=16"), "tiny.max_len"),
    ):
        said = refused(*arguments[:1], *SETTINGS, *arguments[1:], "--root", tmp_path / "runs", "--quiet")
        assert named in said, (arguments, said)


def test_resuming_with_other_settings_is_refused(finished, gym):
    root, done = finished
    name = Path(json.loads(done.stdout)["run"]).name
    go = [gym, "--resume", name, "--root", root, "--quiet", "--force"]
    same = ["--perturb", "error=0.1"]
    assert "steps = 2, and now it is 3" in refused(*go, *same, "steps=3")
    for other, named in (
        (["--perturb", "error=0.2"], "perturb error=0.1, and now it is error=0.2"),
        ([], "perturb error=0.1, and now it is not given"),
        ([*same, "--reward-source", "criteria"], "reward_source model, and now it is criteria"),
        ([*same, "--simulator", "nearest"], "simulator retrieval, and now it is nearest"),
        ([*same, "--min-confidence", "0.5"], "min_confidence not given, and now it is 0.5"),
        ([*same, *real(gym)], "real not given"),
        ([*same, "--policy", root], "policy tiny"),
        ([*same, "--real-budget", "5"], "real_budget not given, and now it is 5"),
    ):
        said = refused(*go, *other)
        assert named in said and "Resume with the same" in said, said
    assert run(*go, *same, "-a", "ppo").exit_code == 2
    again = run(*go, *same, "--json")  # nothing is left to do
    assert again.exit_code == 0, again.output
    one, two = json.loads(done.stdout), json.loads(again.stdout)
    assert {k: v for k, v in one.items() if k != "seconds"} == {k: v for k, v in two.items() if k != "seconds"}


# ---------------------------------------------------------------------- odd logs


def chat(task: str, *said: str, reward: float | None = None) -> str:
    messages = [{"role": "user", "content": f"Do {task}."}, *({"role": "assistant", "content": s} for s in said)]
    return json.dumps({"task_id": task, "messages": messages, **({} if reward is None else {"reward": reward})})


def fitted(folder: Path, lines: list[str]) -> Path:
    from rlready.dreaming.fit import fit
    from rlready.dreaming.options import FitOptions

    (folder / "log.jsonl").write_text("".join(line + "\n" for line in lines))
    fit([folder / "log.jsonl"], folder / "gym", FitOptions(curve=False), progress="quiet")
    return folder / "gym"


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        ([chat("t", f"answer {i}", reward=i % 2) for i in range(6)], None),
        ([chat(f"t{i}", "yes") for i in range(20)], "no recorded success to clone"),
        ([chat(f"t{i}", "yes", reward=1) for i in range(20)], None),
        ([chat(f"t{i}", "yes", reward=0) for i in range(20)], "no recorded success to clone"),
    ],
    ids=["one task", "no rewards", "one action", "no success"],
)
def test_odd_logs_end_in_one_sentence_or_a_good_run(lines, named, tmp_path):
    gym = fitted(tmp_path, lines)
    arguments = [gym, *SETTINGS, "--root", tmp_path / "runs", "--quiet", "--force"]
    if named is not None:
        assert named in refused(*arguments)
        return
    done = run(*arguments)
    assert done.exit_code == 0, (done.output, done.exception)
    assert done.stdout.strip().endswith("Result: not checked in a real environment.")


# ---------------------------------------------------------------------- Ctrl-C


def test_ctrl_c_saves_and_says_how_to_go_on(gym, tmp_path):
    command = [sys.executable, "-m", "rlready", "dream", "train", str(gym), *SETTINGS, "steps=2000", "save_every=0",
               "--root", str(tmp_path), "--quiet"]  # fmt: skip
    env = os.environ | {"RLREADY_THREADS": "1", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    end = time.monotonic() + 240
    begun = '"step": 1, "stage": "dream RL"'
    while not any(begun in p.read_text() for p in tmp_path.glob("*/metrics.jsonl")) and time.monotonic() < end:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130 and "Traceback" not in said
    assert "saved. Go on with --resume" in " ".join(said.split())
    (folder,) = tmp_path.glob("*/")
    assert json.loads((folder / "run.json").read_text())["state"] == "interrupted"
