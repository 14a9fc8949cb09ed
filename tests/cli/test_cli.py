"""The command line as a person or a script meets it."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import rlready.recipes
from rlready.cli import app
from rlready.recipes import registry

RECIPE = '''
"""A recipe small enough to follow."""
from dataclasses import dataclass
from rlready.run import Table

@dataclass(frozen=True)
class Config:
    gain: float = 0.2
    fail: bool = False

CONFIG = Config

def small(run, config=None):
    config = config or Config()
    with run.stage("train"):
        for step in run.steps(3):
            run.spend(real=10)
            run.log(step, {"success": 0.1 * step})
    if config.fail:
        raise KeyboardInterrupt
    gain = config.gain + 0.1 * run.seed
    table = Table("Success", ("agent", "greedy"), [("cloning", "41%"), ("dream", "60%")])
    return run.report("The toy", tables=[table], metrics={"gain": gain}, notes=["A note."])

def smoke(run, config=Config(gain=0.0)):
    return small(run, config)

def full(run, config=None, plan=False):
    if plan:
        return "One model of 8B parameters, 16 GB."
    raise AssertionError("not here")
'''
DOOR = """
import rlready as rl

class Door(rl.Env):
    async def reset(self, task, seed):
        return rl.Observation("A door.", actions=["open sesame", "wait"])

    async def step(self, action):
        return rl.Step(rl.Observation("It opens."), float(action != "wait"), terminated=True)

tasks = rl.TaskSet([rl.Task(data={"n": n}) for n in range(4)])
"""
PAPER = """
number = 1
slug = "toy"
name = "Toy"
title = "Toys learn"
year = 2020
arxiv = "2001.00001"
summary = "A toy that learns."
[[claims]]
id = "gain"
statement = "It gains 10 points."
metric = "gain"
threshold = 0.1
paper = "12 points"
"""
TASKS = """
import rlready as rl
from rlready.types import Task

answers = ["red", "green", "blue"]
tasks = rl.TaskSet(
    [Task.of(f"{a} {n}", answer=a, choices=answers) for a in answers for n in range(20)],
    score=lambda task, trajectory: float(trajectory.turns[-1].text == task.data["answer"]),
)
few = tasks.head(6)
paid = rl.TaskSet(tasks, score=lambda task, trajectory: 1.0)
unscored = rl.TaskSet(tasks)
number = 3
"""
SLIPS = {
    "slip.py": "import rlready\nimport rlreedy\n",
    "late_slip.py": "import rlready\n\ndef tasks():\n    return {}['a']\n",
    "helped.py": "from helper import half\n\ntasks = half(0)\n",
    "helper.py": "def half(x):\n    return 1 / x\n",
}
TRAIN = ("steps=6", "groups=4", "group_size=4", "eval_every=3", "save_every=2", "tiny.dim=16", "tiny.layers=1")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    for name, text in {"my_task.py": TASKS, "data.jsonl": "{}\n"}.items() | SLIPS.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    house = tmp_path / "house" / "recipes"
    (house / "toy").mkdir(parents=True)
    (house / "toy" / "paper.toml").write_text(PAPER)
    (house / "toy" / "recipe.py").write_text(RECIPE)
    (house / "later").mkdir()
    later = PAPER.split("[[claims]]")[0].replace('"toy"', '"later"').replace("number = 1", "number = 2")
    (house / "later" / "paper.toml").write_text(later)
    monkeypatch.setattr(registry, "FOLDER", house)
    monkeypatch.setattr(rlready.recipes, "__path__", [str(house)])
    registry.papers.cache_clear()
    yield house / "toy"
    registry.papers.cache_clear()
    for name in [n for n in sys.modules if n.startswith("rlready.recipes.toy")]:
        del sys.modules[name]
    importlib.invalidate_caches()


def call(*args: str, code: int = 0) -> tuple[str, str]:
    result = CliRunner().invoke(app, [*args], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.stdout, result.stderr


def call_json(*args: str) -> Any:
    return json.loads(call(*args, "--json")[0])


# -- papers and claims --


def test_papers_lists_and_searches() -> None:
    text, _ = call("papers")
    assert "33 papers" in text and all(p.slug in text and p.arxiv in text for p in registry.papers())
    assert max(len(line) for line in text.splitlines()) <= 100
    text, _ = call("papers", "memory", "chunks")
    assert text.split()[1] == "memagent"
    assert "No paper matches" in call("papers", "xyzzy")[0]
    listed = call_json("papers")
    assert [p["number"] for p in listed] == list(range(1, 34))
    assert {"slug", "title", "year", "arxiv", "summary", "status"} <= set(listed[0])


def test_a_part_of_a_word_finds_a_paper() -> None:
    assert "dreamgym" in [p["slug"] for p in call_json("papers", "dream")]
    assert call_json("papers", "xyzzy") == []


def test_claims_of_every_paper() -> None:
    listed = call_json("claims")
    assert len(listed) == 33
    for p in listed:
        for claim in p["claims"]:
            assert claim["verdict"] in ("holds", "fails", "not measured") and "paper" in claim and "when" in claim
    call("claims")


@pytest.mark.parametrize(
    "command", [(), ("papers",), ("run",), ("claims",), ("train",), ("eval",), ("runs",), ("runs", "show"),
                ("runs", "export"), ("algorithms",), ("doctor",)],
)  # fmt: skip
def test_help_teaches(command: tuple[str, ...]) -> None:
    text, _ = call(*command, "--help")
    assert f"rlready {' '.join(command)}".strip() in text.split("Options")[0].split("Usage:")[1].split("\n", 1)[1]
    assert max(len(line) for line in text.splitlines()) <= 100
    if command:
        assert "--json" in text


def test_light_commands_load_no_torch() -> None:
    code = """
import sys
import rlready
heavy = {"torch", "ray", "vllm", "transformers", "fastapi", "wandb"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
from typer.testing import CliRunner
from rlready.cli import app
for args in ("--help", "papers", "papers memory", "claims", "run --help", "train --help", "runs"):
    result = CliRunner().invoke(app, args.split())
    assert result.exit_code == 0, (args, result.output)
    assert not heavy & set(sys.modules), (args, heavy & set(sys.modules))
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# -- run --


def test_run_prints_the_report_and_leaves_a_run(toy: Path) -> None:
    text, _ = call("run", "toy")
    for part in (
        "The toy",
        "cloning",
        "60%",
        "A note.",
        "Seed 0",
        "30 real transitions",
        "It gains 10 points.",
        "holds",
    ):
        assert part in text
    listed = call_json("runs")
    assert [(r["name"], r["what"], r["state"], r["spent"]) for r in listed] == [
        ("toy-small-1", "toy, small", "done", {"real": 30})
    ]
    assert listed[0]["metric"] == "success" and listed[0]["value"] == pytest.approx(0.3)
    assert "toy-small-1" in call("runs")[0]
    assert "train: steps 1 to 3" in call("runs", "show", "toy-small-1")[0]
    assert not (toy / "results").exists(), "nothing is recorded unasked"


def test_run_seeds_and_record(toy: Path) -> None:
    result = call_json("run", "toy", "--seeds", "3", "--record", "--quiet")
    assert [r["seed"] for r in result["runs"]] == [0, 1, 2]
    assert result["claims"][0]["measured"] == pytest.approx(0.3) and result["claims"][0]["verdict"] == "holds"
    (shown,) = call_json("claims", "toy")
    assert shown["claims"][0]["spread"] == pytest.approx(0.1) and shown["claims"][0]["seeds"] == 3
    text, _ = call("claims", "toy")
    assert "0.3 ±0.1" in text and "12 points" in text and "preset small, 3 seeds" in text


def test_run_settings(toy: Path) -> None:
    assert call_json("run", "toy", "gain=0.05", "--quiet")["claims"][0]["verdict"] == "fails"
    assert call_json("run", "toy", "--preset", "smoke", "--quiet")["runs"][0]["report"]["metrics"] == {"gain": 0.0}
    assert call("run", "toy", "--show-config")[0] == "gain = 0.2\nfail = false\n"
    Path("my.toml").write_text("gain = 0.7\n")
    assert call("run", "toy", "--config", "my.toml", "fail=true", "--show-config")[0] == "gain = 0.7\nfail = true\n"
    assert "16 GB" in call("run", "toy", "--preset", "full", "--plan")[0]
    assert not list(Path("runs").glob("toy-full*"))


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("run", "toyy"), 'Unknown recipe "toyy". Did you mean toy?'),
        (("run", "later"), "later is planned and has no recipe yet. Recipes that run: toy."),
        (("run", "toy", "--preset", "smal"), 'Unknown preset "smal". Did you mean small'),
        (("run", "toy", "gian=1"), 'Unknown key "gian". Did you mean gain?'),
        (("run", "toy", "gain=big"), 'gain must be a number, but is "big".'),
        (("run", "toy", "--plan"), "--plan goes with --preset full"),
        (("run", "toy", "--config", "no.toml"), "There is no file no.toml."),
        (("run", "toy", "--resume", "x-1"), 'There is no run "x-1": runs/ holds no runs yet.'),
        (("claims", "toyy"), 'Unknown recipe "toyy"'),
        (("runs", "show", "x"), 'There is no run "x"'),
        (("algorithms", "grpoo"), 'Unknown algorithm "grpoo". Did you mean grpo'),
        (("train", "my_task.py:tasks", "-a", "grpoo"), 'Unknown algorithm "grpoo". Did you mean grpo or'),
        (("train", "my_task.py:tasks", "-a", "sft"), "sft.only_right=true"),
        (("train", "my_task.py:tasks", "-a", "reinfarce++"), "Did you mean reinforce++"),
        (("train", "my_task.py:tasks", "-m", "hf:X"), '"hf:X" cannot be trained yet: models other than tiny come'),
        (("train", "my_task.py:task"), 'Unknown name "task". Did you mean tasks'),
        (("train", "my_task.py:number"), "my_task.py:number is of type int; a TaskSet"),
        (("train", "my_tsk.py:tasks"), "There is no file my_tsk.py."),
        (("train", "no_such_module:tasks"), "There is no module no_such_module."),
        (("train", "toy"), "toy is a recipe; start it with: rlready run toy"),
        (("train", "my_task.py:tasks", "grpo.clip_hihg=1"), 'Unknown key "grpo.clip_hihg". Did you mean'),
        (("train", "my_task.py:tasks", "--env", "my_task.py:number"), "my_task.py:number is no environment"),
        (("train", "my_task.py:tasks", "steps=0"), "steps is 0; it must be at least 1."),
        (("train", "my_task.py:tasks", "group_size=1"), "grpo compares the episodes of a group"),
        (("train", "my_task.py:tasks", "temperature=0"), "temperature is 0; it must be above 0"),
        (("train", "my_task.py:tasks", "max_tokens=0"), "max_tokens is 0; it must be at least 1."),
        (("train", "my_task.py:tasks", "optimizer.lr=nan"), "optimizer.lr is nan; it must be a number"),
        (("train", "my_task.py:tasks", "max_failures=2"), "max_failures is 2; it is a share, between 0 and 1."),
        (("train", "my_task.py:tasks", "tiny.max_len=9", "--quiet"), "leave room for 0. Set tiny.max_len="),
        (("train", "my_task.py:unscored"), "my_task.py:unscored have no score, and without --env nothing else gives"),
        (("doctor", "my_task.py:unscored"), "my_task.py:unscored have no score"),
        (("train", "slip.py"), "slip.py, line 2: ModuleNotFoundError: No module named 'rlreedy'."),
        (("train", "late_slip.py"), "late_slip.py, line 4: KeyError: 'a'."),
        (("train", "helped.py"), "helped.py, line 3: ZeroDivisionError: division by zero (helper.py, line 2)."),
        (("train", "data.jsonl"), 'tasks = rlready.TaskSet.from_jsonl("data.jsonl", prompt="question"'),
        (("train", "."), '"." is no Python file or module.'),
        (("doctor", "my_tsk.py"), "There is no file my_tsk.py."),
        (("eval", "x"), 'There is no run "x"'),
    ],
)  # fmt: skip
def test_mistakes_are_one_sentence_and_exit_2(toy: Path, args: tuple[str, ...], said: str) -> None:
    out, err = call(*args, code=2)
    assert out == "" and err.startswith(f"rlready {args[0]}: ") and said in err and len(err.strip().splitlines()) == 1


def test_a_setting_written_as_an_option_is_told_how_it_is_written(place: Path) -> None:
    _, err = call("train", "my_task.py:tasks", "--steps", "5", code=2)
    assert "Settings are written without dashes: steps=" in err.replace("\n", " ")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux only")
def test_output_to_a_full_disk_is_one_sentence(place: Path) -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "rlready", "papers"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert ended.returncode == 2 and ended.stderr == "rlready papers: the disk is full. Free some space.\n"


def test_a_syntax_error_in_the_users_file_is_named(place: Path) -> None:
    (place / "broken.py").write_text("x = 1\ny = (\n")
    _, err = call("train", "broken.py:tasks", code=2)
    assert "broken.py, line 2, column" in err


def test_interrupt_exits_130_and_resume_goes_on(toy: Path) -> None:
    _, err = call("run", "toy", "fail=true", code=130)
    assert "rlready run: Left at once. " in err and "toy-small-1" in err
    assert call_json("runs")[0]["state"] == "interrupted"
    _, err = call("run", "toy", "--resume", "toy-small-1", "gain=0.9", code=2)
    assert "made with gain = 0.2, and now it is 0.9" in err
    call("run", "toy", "--resume", "toy-small-1", code=130)  # still told to fail: a resumed run keeps its settings
    assert len(call_json("runs")) == 1


def test_a_damaged_run_does_not_hide_the_others(toy: Path) -> None:
    call("run", "toy")
    call("run", "toy")
    Path("runs/toy-small-1/metrics.jsonl").write_text("oops\n")
    assert [r["state"] for r in call_json("runs")] == ["damaged", "done"]
    _, err = call("runs", "show", "toy-small-1", code=2)
    assert "metrics.jsonl, line 1, column 1" in err
    Path("runs/toy-small-1/run.json").write_text("{")
    assert [(r["name"], r["state"]) for r in call_json("runs")] == [("toy-small-1", "damaged"), ("toy-small-2", "done")]


def test_a_narrow_terminal_shows_fewer_columns_and_the_names_whole(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call("run", "toy")
    monkeypatch.setenv("COLUMNS", "40")
    text, _ = call("runs")
    assert "toy-small-1" in text and "done" in text and "when" not in text and "…" not in text
    monkeypatch.setenv("COLUMNS", "120")
    assert "when (UTC)" in call("runs")[0]


def test_why_a_run_failed_is_shown(place: Path) -> None:
    call("train", "my_task.py:tasks", "--quiet", "tiny.max_len=9", code=2)
    text, _ = call("runs", "show", "my_task-1")
    assert "failed" in text and "Set tiny.max_len=" in text.replace("\n", " ") and "An episode:" not in text


# -- train, eval, runs --


def test_resume_takes_the_runs_own_algorithm_and_refuses_another_task(place: Path) -> None:
    call("train", "my_task.py:tasks", "--quiet", "-a", "rloo", *TRAIN)
    _, err = call("train", "my_task.py:few", "--resume", "my_task-1", code=2)
    assert "made with tasks my_task.py:tasks, and now it is my_task.py:few" in err
    _, err = call("train", "my_task.py:tasks", "-a", "grpo", "--resume", "my_task-1", code=2)
    assert "made with --algorithm rloo, and now it is grpo" in err
    assert "Resumed my_task-1 after step 6" in call("train", "my_task.py:tasks", "--resume", "my_task-1")[1]


def test_a_run_of_a_recipe_is_not_resumed_by_train(toy: Path) -> None:
    call("run", "toy")
    _, err = call("train", "my_task.py:tasks", "--resume", "toy-small-1", code=2)
    assert "was not made by rlready train. Go on with it by rlready run toy --resume toy-small-1" in err


def test_a_run_keeps_its_tokenizer_whatever_becomes_of_the_tasks(place: Path) -> None:
    call("train", "my_task.py:tasks", "--quiet", *TRAIN)
    (place / "my_task.py").write_text(TASKS.replace("choices=answers", "choices=answers, hint='a new word'"))
    assert call_json("eval", "my_task-1")["n"] > 0
    assert (place / "runs" / "my_task-1" / "tokenizer" / "tokenizer.json").exists()


def test_training_in_an_environment_whose_words_are_in_no_task(place: Path) -> None:
    (place / "door.py").write_text(DOOR)
    args = ("steps=2", "groups=2", "group_size=2", "tiny.layers=1", "tiny.dim=16", "tiny.heads=2")
    _, err = call("train", "door.py:tasks", "--env", "door.py:Door", *args)
    assert "grpo on door.py:tasks" in err
    episode = call_json("runs", "show", "door-1", "--trajectory", "last")
    assert episode["turns"][0]["text"] in ("open sesame", "wait")
    assert "%" in call("eval", "door-1")[0]


def test_nothing_to_compare_is_said(place: Path) -> None:
    out, _ = call("train", "my_task.py:paid", "--quiet", *TRAIN)
    assert "Nothing was learned: in no group did two episodes earn different rewards." in out


def test_train_eval_show_export(place: Path) -> None:
    result = call_json("train", "my_task.py:tasks", "--quiet", "--seed", "4", *TRAIN)
    run = Path(result["run"])
    assert run == Path("runs/my_task-1") and 0 <= result["metrics"]["eval/success"] <= 1 and result["seed"] == 4
    assert (run / "model" / "model.safetensors").exists() and (run / "model" / "tokenizer.json").exists()
    again = call_json("train", "my_task.py:tasks", "--quiet", "--seed", "4", *TRAIN)
    assert again["metrics"] == result["metrics"], "the same seed gives the same run"

    scored = call_json("eval", "my_task-1", "--split", "dev")
    assert scored["success"] == result["metrics"]["eval/success"] and scored["step"] == 6
    text, _ = call("eval", "my_task-1", "--samples", "2", "--temperature", "1")
    assert text.startswith("my_task-1, step 6, test, temperature 1: ") and "%" in text
    _, err = call("eval", "my_task-1", "--split", "tset", code=2)
    assert 'Unknown split "tset". Did you mean test?' in err

    shown, _ = call("runs", "show", "my_task-1", "--trajectory", "worst")
    assert "turn 0" in shown and "verdict" in shown
    episode = call_json("runs", "show", "my_task-1", "--trajectory", "last")
    assert episode["turns"][0]["text"] in ("red", "green", "blue"), "answers are limited to the choices"
    _, err = call("runs", "show", "my_task-1", "--trajectory", "wurst", code=2)
    assert 'Unknown trajectory "wurst". Did you mean worst' in err
    _, err = call("runs", "show", "my_task-1", "--verdict", "rong", code=2)
    assert "Did you mean wrong" in err
    files = call_json("runs", "export", "my_task-1", "--out", "episodes")["files"]
    assert len(files) == 6 * 4 * 4 and (place / "episodes" / files[0]).exists()
    _, err = call("runs", "export", "my_task-1", "--out", "my_task.py", code=2)
    assert "Cannot write my_task.py: File exists. The run itself is as it was." in err
    _, err = call("runs", "export", "my_task-1", "--verdict", "rigt", code=2)
    assert 'Unknown verdict "rigt". Did you mean right' in err
    assert "steps 0 to 6" in call("runs", "show", "my_task-1")[0]
    _, err = call("runs", "export", "my_task-1", "--format", "csv", code=2)
    assert 'Unknown format "csv"' in err


def test_train_on_few_tasks_says_that_it_cannot_split() -> None:
    _, err = call("train", "my_task.py:few", *TRAIN)
    assert "6 tasks, too few to split: dev is train" in err
    assert "these are the training tasks" in call("eval", "my_task-1")[0]


def test_algorithms() -> None:
    text, _ = call("algorithms")
    assert "grpo" in text and "rloo" in text
    assert "grpo.clip_high = 0.2" in call("algorithms", "grpo")[0]
    assert call_json("algorithms")["grpo"]["settings"]["clip_high"] == 0.2


def command(*args: str, cwd: Path) -> subprocess.Popen[str]:
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "rlready", *args], cwd=cwd, env=env, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_ctrl_c_twice_and_once_in_real_training(place: Path) -> None:
    slow = textwrap.dedent(TASKS).replace("float(trajectory", "__import__('time').sleep(0.004) or float(trajectory")
    (place / "my_task.py").write_text(slow)
    train = ("train", "my_task.py:tasks", *TRAIN, "steps=12")
    metrics = place / "runs" / "my_task-1" / "metrics.jsonl"

    def wait_for(lines: int) -> None:
        end = time.monotonic() + 60
        while not metrics.exists() or metrics.read_bytes().count(b"\n") < lines:
            assert time.monotonic() < end
            time.sleep(0.004)

    process = command(*train, cwd=place)
    wait_for(3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and out == "", err
    assert "saved. Go on with --resume my_task-1." in err and "Traceback" not in err
    done = len(metrics.read_text().splitlines())
    assert 3 <= done < 12

    process = command(*train, "--resume", "my_task-1", cwd=place)
    wait_for(done + 1)
    process.send_signal(signal.SIGINT)
    time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in err

    _, err = call(*train, "--resume", "my_task-1")
    assert [json.loads(line)["step"] for line in metrics.read_text().splitlines()] == list(range(13)), err
