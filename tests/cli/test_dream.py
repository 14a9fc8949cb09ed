"""`rlready dream` as a person or a script meets it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rlready.cli import app
from rlready.worlds.fiction.play import play_logs, write_logs
from rlready.worlds.fiction.world import MIXED, FictionWorld

TAU = Path(__file__).resolve().parents[3] / "shared" / "cases" / "logs" / "tau_airline_gpt4o.json"


@pytest.fixture(scope="module")
def log(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("logs") / "desk.jsonl"
    write_logs(play_logs(FictionWorld(0, "desk"), MIXED, 60, 0), path)
    with path.open("a", encoding="utf-8") as f:
        f.write('{"messages": 3}\n')
    return path


@pytest.fixture(scope="module")
def gym(log, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("gyms") / "desk"
    done = CliRunner().invoke(app, ["dream", "fit", str(log), "--out", str(out), "--quiet", "--no-curve"])
    assert done.exit_code == 0, done.output
    return out


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["dream", *map(str, arguments)])


def test_help_teaches_and_groups():
    whole = CliRunner().invoke(app, ["--help"]).output
    assert "Turn logs into a gym" in whole
    group = run("--help").output
    assert all(name in group for name in ("fit", "report", "train", "serve", "show"))
    for name in ("fit", "report", "serve", "show"):
        assert f"rlready dream {name} " in run(name, "--help").output


def test_fit_says_what_it_understood_and_what_to_do_next(log, tmp_path):
    out = tmp_path / "gym"
    done = run("fit", log, "--out", out, "--quiet", "--setup-seconds", 5, "--step-seconds", 1)
    assert done.exit_code == 0, done.output
    said = done.stdout
    assert "60 runs of 60 tasks" in said
    assert f"{log} line 61" in said and str(out / "dropped.jsonl") in said.replace("\n", "")
    for words in ("kind of action", "What is missing, and why that hurts", "The curve", "nearest recorded transition",
                  "no change", "Verdict: ", f"rlready dream train {out}"):  # fmt: skip
        assert words in said, words
    assert "The log has no times" not in said  # they were given
    assert max(map(len, (line for line in said.split("\n") if "/" not in line))) <= 100
    assert said.index("60 runs") < said.index("The curve") < said.index("Verdict: ") < said.index("dream report")


def test_fit_as_json_is_json_alone(log, tmp_path):
    done = run("fit", log, "--out", tmp_path / "gym", "--quiet", "--json", "--no-curve", "--perturb", "error=0.05")
    said = json.loads(done.stdout)
    assert said["understanding"]["runs"] == 60 and said["dropped"] == 1
    assert said["verdict"]["word"] in ("fit to train in", "needs more", "do not dream")
    assert said["seconds"]["by_backend"].keys() == {"retrieval with code", "retrieval", "nearest", "no_change"}
    assert json.loads((tmp_path / "gym" / "gym.json").read_text())["perturb"][0]["rate"] == 0.05


def test_mistakes_are_one_sentence_and_leave_nothing(log, gym, tmp_path):
    for arguments, named in (
        (("fit", tmp_path / "none"), "none"),
        (("fit", log, "--out", gym), "--force"),
        (("fit", log, "--out", tmp_path / "a", "--simulator", "retreival"), "retrieval"),
        (("fit", log, "--out", tmp_path / "a", "--perturb", "eror=1"), "error"),
        (("fit", log, "--out", tmp_path / "a", "--verifier", "none.py:score"), "none.py"),
        (("show", tmp_path / "a"), "rlready dream fit"),
        (("report", tmp_path / "a"), "rlready dream fit"),
        (("serve", tmp_path / "a"), "rlready dream fit"),
        (("serve", gym, "--mcp", "htpt"), "http"),
        (("serve", gym, "--host", "0.0.0.0"), "--expose"),
        (("report", gym, "--tasks", "a.py:tasks"), "--real"),
    ):
        done = run(*arguments)
        assert done.exit_code == 2, (arguments, done.output)
        assert named in done.output.replace("\n", " ") and "Traceback" not in done.output
    assert list(tmp_path.iterdir()) == []


def test_show_prints_what_fit_measured(gym):
    done = run("show", gym)
    assert done.exit_code == 0 and "60 runs of 60 tasks" in done.stdout and "Verdict: " in done.stdout
    assert json.loads(run("show", gym, "--json").stdout)["simulator"]["name"] == "retrieval"


def test_report_writes_three_files_and_says_it_was_not_checked(gym):
    done = run("report", gym, "--quiet", "--replays", 3, "--simulator", "nearest")
    assert done.exit_code == 0, done.output
    said = done.stdout
    assert "not checked in a real environment" in said
    assert "0 of 8 scripts differ over 3 replays" in " ".join(said.split())
    assert str(gym / "report.html") in said.replace("\n", "")
    record = json.loads((gym / "report.json").read_text())
    assert record["sameness"]["reward_variance"] == 0 and record["gate"]["passed"]
    assert (gym / "report.md").exists() and "<html" in (gym / "report.html").read_text()


REAL = """
from rlready.worlds.fiction.world import FictionWorld

_world = FictionWorld(0, "desk")
env = _world.env
tasks = _world.splits["train"]
"""


def test_report_against_the_real_environment_counts_its_transitions(gym, tmp_path):
    (tmp_path / "desk_env.py").write_text(REAL)
    real = f"{tmp_path / 'desk_env.py'}:env"
    done = run("report", gym, "--quiet", "--replays", 2, "--real", real, "--tasks", real.replace(":env", ":tasks"),
               "--real-budget", 60, "--json")  # fmt: skip
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert 0 < said["closed"]["real_transitions"] <= 60
    assert said["economics"]["real_step"] is not None


def test_serve_answers_until_it_is_stopped(gym):
    pytest.importorskip("uvicorn")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    served = subprocess.Popen(
        [sys.executable, "-m", "rlready", "dream", "serve", str(gym), "--port", str(port)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    try:
        for _ in range(600):
            time.sleep(0.1)
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
                    assert answer.status == 200
                break
            except OSError:
                assert served.poll() is None, served.communicate()
        else:
            raise AssertionError("it never listened")
        served.send_signal(signal.SIGINT)
        said, complaint = served.communicate(timeout=60)
    finally:
        served.kill()
    assert said == "" and f"http://127.0.0.1:{port}" in complaint and "Traceback" not in complaint


@pytest.mark.skipif(not TAU.exists(), reason="the shared log is not here")
def test_eighty_real_conversations_are_understood_within_a_minute(tmp_path):
    began = time.monotonic()
    done = run("fit", TAU, "--out", tmp_path / "gym", "--quiet", "--json", "--no-curve")
    assert done.exit_code == 0, done.output
    assert time.monotonic() - began < 60
    said = json.loads(done.stdout)
    assert said["understanding"]["runs"] == 80 and said["dropped"] == 0
    assert said["understanding"]["successes"] == 20 and said["understanding"]["tasks"] == 20
    rows = {(r["name"], r["with_code"]): r["f1"]["macro"] for r in said["backends"]}
    assert rows["retrieval", True] > rows["nearest", False] > rows["no_change", False]
