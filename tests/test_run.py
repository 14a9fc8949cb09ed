"""The run folder: what it holds, how it resumes, and what it does when something goes wrong."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import atif
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlready.checkpoint import load_checkpoint, load_state, save_checkpoint, save_state
from rlready.errors import UserError
from rlready.export import export_atif, from_atif, to_atif
from rlready.progress import ProgressBoard, duration
from rlready.run import Run, Table
from rlready.run_files import FolderLock, JsonlFile, disk_errors, read_jsonl, write_atomic
from rlready.run_folder import read_header
from rlready.run_log import read_trajectory, trajectory_record
from rlready.run_read import load_run
from rlready.types import Group, Message, Part, Task, ToolCall, Trajectory, Turn, Verdict


class Adder:
    """A learner small enough to follow by hand: weight += step * its own noise."""

    def __init__(self, size: int = 3) -> None:
        self.weight = torch.zeros(size)
        self.cursor = 0

    def weights(self) -> dict[str, Any]:
        return {"weight": self.weight}

    def state_dict(self) -> dict[str, Any]:
        return {"model": {"weight": self.weight.clone()}, "cursor": self.cursor}

    def load_state_dict(self, state: Any) -> None:
        self.weight = state["model"]["weight"].clone()
        self.cursor = state["cursor"]


class Crash(Exception):
    pass


def play(run: Run, n: int, crash_after: int | None = None, every: int = 2) -> Adder:
    """A loop with all that a run offers; draws from the global generator on purpose."""
    learner = Adder()
    parts = {"learner": learner}
    run.restore(parts)
    for step in run.steps(n):
        learner.weight = learner.weight * 0.9 + torch.rand(3) * step
        learner.cursor += 1
        run.spend(real=10)
        run.log(step, {"reward": float(learner.weight.sum())})
        run.trajectories(step, [group(step)])
        if step % every == 0:
            run.save(step, parts)
        if step == crash_after:
            raise Crash
    return learner


def group(step: int) -> Group:
    task = Task.of(f"say {step}", answer=str(step))
    turns = [
        Turn([1, 2], [3, 4], [-0.1, -0.2], text="a b", context=(Message.user("hello"),)),
        Turn([1, 2, 3, 4, 5], [6], [-0.3], parent=0, advantage=0.5, reward=1.0, text="c"),
    ]
    return Group(task, [Trajectory(task, turns, reward=float(step), verdict=Verdict.RIGHT, seed=step)])


def logged(run: Run | Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    lines = read_jsonl((run if isinstance(run, Path) else run.dir) / name)
    return [{k: v for k, v in line.items() if k not in ("run_seconds", "timings")} for line in lines]


def make(tmp_path: Path, **kw: Any) -> Run:
    return Run.create("t", kw.pop("config", {"lr": 0.1}), kw.pop("seed", 3), root=tmp_path, progress="quiet", **kw)


def test_folder_holds_what_it_promises(tmp_path: Path) -> None:
    torch.manual_seed(0)
    with make(tmp_path, recipe="adder", preset="small") as run:
        play(run, 4)
        table = Table("who", ("arm", "success"), [("cloning", "41.2%"), ("dream", "60.0%")])
        run.report("What the adder learned", tables=[table], metrics={"gain": 0.188}, notes=["One note."])
    assert run.dir == tmp_path / "t-1"
    assert [line["step"] for line in logged(run)] == [1, 2, 3, 4]
    assert [line["real"] for line in logged(run)] == [10, 20, 30, 40]
    header = read_header(run.dir)
    assert (header["state"], header["recipe"], header["seed"], header["spent"]) == ("done", "adder", 3, {"real": 40})
    report = json.loads((run.dir / "report.json").read_text())
    assert report["metrics"] == {"gain": 0.188} and report["tables"][0]["rows"][1] == ["dream", "60.0%"]
    assert report["plots"] == ["reward_by_step.png", "reward_by_real.png"]
    for name in report["plots"]:
        assert (run.dir / name).read_bytes().startswith(b"\x89PNG")
    text = (run.dir / "report.md").read_text()
    assert "| dream | 60.0% |" in text and "40 real transitions" in text
    second = make(tmp_path)
    assert second.name == "t-2"
    second.close()


def test_tensorboard_reads_the_events(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with make(tmp_path) as run:
        play(run, 2)
        with run.stage("dream"):
            run.log(1, {"success": 0.25, "nan": float("nan")})
    events = EventAccumulator(str(run.dir / "tensorboard"))
    events.Reload()
    assert [e.step for e in events.Scalars("reward")] == [1, 2]
    assert events.Scalars("dream/success")[0].value == 0.25
    assert "dream/nan" not in events.Tags()["scalars"]


@pytest.mark.parametrize("crash_after", [1, 2, 3, 5])
def test_crash_and_resume_equal_uninterrupted(tmp_path: Path, crash_after: int) -> None:
    torch.manual_seed(7)
    with make(tmp_path / "whole") as run:
        whole = play(run, 6)
    torch.manual_seed(7)
    with pytest.raises(Crash), make(tmp_path / "torn") as torn:
        play(torn, 6, crash_after=crash_after)
    if crash_after == 1:
        torch.manual_seed(7)  # nothing was saved yet, so the run starts again
    else:
        torch.manual_seed(99)
    with make(tmp_path / "torn", resume="t-1") as again:
        resumed = play(again, 6)
    assert torch.equal(whole.weight, resumed.weight) and whole.cursor == resumed.cursor
    assert logged(again) == logged(run)
    assert logged(again, "trajectories.jsonl") == logged(run, "trajectories.jsonl")
    assert again.spent("real") == run.spent("real") == 60


def test_kill_leaves_a_torn_line_and_a_half_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(Crash), make(tmp_path) as run:
        play(run, 6, crash_after=5)
    with (run.dir / "metrics.jsonl").open("ab") as f:
        f.write(b'{"step": 6, "rew')
    half = run.dir / "checkpoints" / "run" / f".step-00000006.{os.getpid()}.tmp"
    half.mkdir()
    (half / "learner.pt").write_bytes(b"PK")
    assert [line["step"] for line in logged(run)] == [1, 2, 3, 4, 5]
    with make(tmp_path, resume=run.dir) as again:
        assert not half.exists()
        assert [line["step"] for line in logged(again)] == [1, 2, 3, 4]
        assert again.restore({"learner": Adder()}) == 4


def test_stages_are_skipped_when_done_and_redone_when_not(tmp_path: Path) -> None:
    def recipe(run: Run, fail: bool) -> list[str]:
        did = []
        learner = Adder()
        with run.stage("logs") as logs:
            if not logs.done:
                did.append("logs")
                run.spend(real=5)
                (logs.dir / "data.txt").write_text("x" * 10)
                logs.result["n"] = 10
                learner.weight += 1
                logs.save({"learner": learner})
            else:
                logs.load({"learner": learner})
        assert logs.result == {"n": 10} and (logs.dir / "data.txt").read_text() == "x" * 10
        assert learner.weight.tolist() == [1, 1, 1]
        with run.stage("train") as stage:
            if not stage.done:
                did.append("train")
                assert not list(stage.dir.iterdir())
                (stage.dir / "half.txt").write_text("half")
                play(run, 4, crash_after=3 if fail else None)
        return did

    with pytest.raises(Crash), make(tmp_path) as run:
        recipe(run, fail=True)
    with make(tmp_path, resume="t-1") as again:
        assert recipe(again, fail=False) == ["train"]
        assert again.spent("real") == 45 and again.spent("real", "logs") == 5 and again.spent("real", "train") == 40
        assert 0 < again.seconds("train") < again.seconds()
    assert [(line["stage"], line["step"]) for line in logged(again)] == [("train", s) for s in (1, 2, 3, 4)]
    with make(tmp_path, resume="t-1") as third:
        assert recipe(third, fail=False) == []
        assert third.spent("real") == 45


def test_a_stage_finished_after_the_last_checkpoint_counts(tmp_path: Path) -> None:
    with pytest.raises(Crash), make(tmp_path) as run:
        with run.stage("a"):
            play(run, 3)  # saved after step 2 only; the stage's end saves the rest
        run.log(9, {"lost": 1.0})
        raise Crash
    with make(tmp_path, resume="t-1") as again:
        assert [line["step"] for line in logged(again)] == [1, 2, 3]
        assert again.spent("real") == 30


def test_two_loops_in_one_stage_are_refused(tmp_path: Path) -> None:
    with make(tmp_path) as run:
        play(run, 1)
        with pytest.raises(ValueError, match=r"own run\.stage"):
            play(run, 1)


def test_keeps_the_last_and_the_best(tmp_path: Path) -> None:
    with make(tmp_path, keep=2) as run:
        parts = {"learner": Adder()}
        for step, score in enumerate([0.1, 0.9, 0.3, 0.2, 0.4], start=1):
            run.save(step, parts, score=score)
        assert sorted(p.name[-1] for p in run.dir.glob("checkpoints/run/step-*")) == ["2", "4", "5"]


def test_resume_refuses_another_configuration_and_unknown_runs(tmp_path: Path) -> None:
    make(tmp_path, config={"grpo": {"lr": 0.1}}).close()
    with pytest.raises(UserError, match=r"made with grpo\.lr = 0\.1, and now it is 0\.2"):
        make(tmp_path, config={"grpo": {"lr": 0.2}}, resume="t-1")
    with pytest.raises(UserError, match=r'Unknown run "t-9"\. Did you mean t-1'):
        make(tmp_path, resume="t-9")


def test_one_writer_at_a_time_and_killed_runs_show_as_stopped(tmp_path: Path) -> None:
    run = make(tmp_path)
    with pytest.raises(UserError, match="written by another process"):
        make(tmp_path, resume="t-1")
    assert read_header(run.dir)["state"] == "running"
    run._lock.release()  # what the system does when a process is killed
    assert not FolderLock.held(run.dir)
    assert read_header(run.dir)["state"] == "stopped"
    run.close()


def test_checkpoint_of_another_model(tmp_path: Path) -> None:
    with make(tmp_path) as run:
        run.save(1, {"learner": Adder(3)})
    with (
        make(tmp_path, resume="t-1") as again,
        pytest.raises(UserError, match=r"another model: learner's weight is 3 there and 4 here"),
    ):
        again.restore({"learner": Adder(4)})
    with make(tmp_path, resume="t-1") as again, pytest.raises(UserError, match="has no curriculum; it holds"):
        again.restore({"curriculum": Adder()})

    class Module(torch.nn.Linear):
        pass

    save_checkpoint(tmp_path / "c", {"m": Module(2, 3)}, {})
    with pytest.raises(UserError, match=r"does not fit this m .*another model"):
        load_checkpoint(tmp_path / "c", {"m": Module(2, 4)})


def test_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    with make(tmp_path) as run:
        run.save(1, {"learner": Adder()})
        path = run.save(2, {"learner": Adder()})
    with (path / "learner.pt").open("r+b") as f:
        f.truncate(100)
    with pytest.raises(UserError, match=r"step-00000002 is damaged: learner\.pt has 100 bytes instead of"):
        make(tmp_path, resume="t-1")


# -- disk full --


class FullDisk:
    """Lets a file take `room` more bytes, then fails like a full disk, after a partial write."""

    def __init__(self, file: Any, room: int) -> None:
        self.file, self.room = file, room

    def write(self, data: Any) -> int:
        if self.room <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        n = self.file.write(bytes(data)[: self.room])
        self.room -= n
        return int(n)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


@pytest.mark.parametrize("room", [0, 1, 37])
def test_full_disk_while_logging(tmp_path: Path, room: int) -> None:
    with pytest.raises(UserError) as caught, make(tmp_path) as run:
        parts = {"learner": Adder()}
        for step in run.steps(5):
            run.log(step, {"reward": 1.0})
            run.save(step, parts)
            if step == 3:
                run._metrics._file = FullDisk(run._metrics._file, room)  # type: ignore[assignment]
    assert str(caught.value).startswith("The disk is full: ") and "step-00000003 is intact" in str(caught.value)
    assert read_header(run.dir)["state"] == "failed"
    assert (run.dir / "metrics.jsonl").read_bytes().endswith(b"}\n")
    with make(tmp_path, resume="t-1") as again:
        assert again.restore({"learner": Adder()}) == 3
        assert [line["step"] for line in logged(again)] == [1, 2, 3]


def test_a_full_disk_under_torch_and_places_that_cannot_be_written(tmp_path: Path) -> None:
    class Full(io.BytesIO):
        def write(self, data: Any) -> int:
            if self.tell() > 3000:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(data)

    with pytest.raises(UserError, match=r"The disk is full: there could not be written\. All is well"):  # noqa: SIM117
        with disk_errors(Path("there"), "All is well."):
            torch.save({"w": torch.zeros(5000)}, Full())
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"Cannot write .*File exists. Nothing was started."):
        Run.create("x", root=tmp_path / "file")
    with pytest.raises(RuntimeError, match="ours"), disk_errors(tmp_path, ""):
        raise RuntimeError("ours")


def test_what_a_run_failed_of_is_kept_until_it_goes_on(tmp_path: Path) -> None:
    with pytest.raises(UserError), Run.create("x", root=tmp_path, progress="quiet"):
        raise UserError("The fuse blew. Mend it.")
    assert read_header(tmp_path / "x-1")["error"] == "The fuse blew. Mend it."
    with Run.create("x", root=tmp_path, resume="x-1", progress="quiet"):
        pass
    assert "error" not in read_header(tmp_path / "x-1")


def test_full_disk_while_saving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(state: Any, f: Any) -> None:
        f.write(b"PK\x03\x04")
        raise OSError(errno.ENOSPC, "No space left on device")

    said = r"disk is full: .*step-00000004 could not be written.*step-00000002 is intact"
    with pytest.raises(UserError, match=said), make(tmp_path) as run:
        parts = {"learner": Adder()}
        run.save(2, parts)
        monkeypatch.setattr(torch, "save", full)
        run.save(4, parts)
    monkeypatch.undo()
    assert [p.name for p in (run.dir / "checkpoints" / "run").iterdir()] == ["step-00000002"]
    with make(tmp_path, resume="t-1") as again:
        assert again.restore({"learner": Adder()}) == 2


# -- Ctrl-C --

SCRIPT = """
import sys, time
from pathlib import Path
from rlready.run import Run

class Part:
    n = 0
    def state_dict(self): return {"n": self.n}
    def load_state_dict(self, state): self.n = state["n"]

root, resume, slow = sys.argv[1], sys.argv[2] or None, float(sys.argv[3])
part = Part()
with Run.create("t", {}, root=root, resume=resume, progress="quiet") as run:
    run.restore({"part": part})
    for step in run.steps(6):
        part.n += step
        if step == 3:
            print("at 3", flush=True)
            deadline = time.time() + slow
            while time.time() < deadline:
                time.sleep(0.01)
        run.log(step, {"reward": part.n})
        if step == 2:
            run.save(step, {"part": part})
print("end", part.n)
"""


def start(tmp_path: Path, resume: str = "", slow: float = 0.0) -> subprocess.Popen[str]:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    return subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "runs"), resume, str(slow)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_one_interrupt_finishes_the_step_and_saves(tmp_path: Path) -> None:
    process = start(tmp_path, slow=1.0)
    assert process.stdout is not None and process.stdout.readline() == "at 3\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode != 0 and "end" not in out
    assert "Finishing this step, then saving" in err
    assert "Stopped after step 3 and saved. Go on with --resume t-1." in err
    assert read_header(tmp_path / "runs" / "t-1")["state"] == "interrupted"
    assert [line["step"] for line in logged(tmp_path / "runs" / "t-1")] == [1, 2, 3]
    out, err = start(tmp_path, resume="t-1").communicate(timeout=60)
    assert out == "end 21\n", err
    assert [line["step"] for line in logged(tmp_path / "runs" / "t-1")] == [1, 2, 3, 4, 5, 6]


def test_two_interrupts_leave_at_once(tmp_path: Path) -> None:
    process = start(tmp_path, slow=60.0)
    assert process.stdout is not None and process.stdout.readline() == "at 3\n"
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode != 0 and "Left at once." in err and "step-00000002 is intact" in err
    out, err = start(tmp_path, resume="t-1").communicate(timeout=60)
    assert out == "at 3\nend 21\n", err


# -- files --


def test_atomic_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    write_atomic(path, "old")
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
    with pytest.raises(OSError, match="full"):
        write_atomic(path, "new")
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_jsonl_splits_on_newline_only_and_names_bad_lines(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    file = JsonlFile(path)
    odd = {"text": "a\u2028b\u0085c\x0bd", "n": np.float32(0.5), "bad": float("nan")}
    file.append(odd, {"text": "next"})
    file.close()
    assert read_jsonl(path) == [{"text": odd["text"], "n": 0.5, "bad": None}, {"text": "next"}]
    path.write_bytes(b'{"a": 1}\n{"a": oops}\n{"a": 2}\n')
    with pytest.raises(UserError, match=r"x\.jsonl, line 2, column 7: Expecting value"):
        read_jsonl(path)


@given(cut=st.integers(0, 400))
@settings(max_examples=60, deadline=None)
def test_a_file_cut_anywhere_is_read_and_continued(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    path = tmp_path_factory.mktemp("cut") / "x.jsonl"
    file = JsonlFile(path)
    file.append(*({"i": i, "text": "é" * i} for i in range(12)))
    file.close()
    whole = path.read_bytes()
    path.write_bytes(whole[:cut])
    kept = whole[:cut].count(b"\n")
    assert [r["i"] for r in read_jsonl(path)] == list(range(kept))
    file = JsonlFile(path)
    file.append({"i": 99})
    file.close()
    assert [r["i"] for r in read_jsonl(path)] == [*range(kept), 99]


leaves = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False), st.text(), st.binary(max_size=8)
)
states = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.tuples(inner, inner), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(state=states)
@settings(max_examples=60, deadline=None)
def test_state_survives_exactly(tmp_path_factory: pytest.TempPathFactory, state: Any) -> None:
    folder = tmp_path_factory.mktemp("state")
    save_state(folder, "part", state)
    back = load_state(folder, "part")
    assert back == state and type(back) is type(state)


def test_state_with_arrays_tensors_and_generators(tmp_path: Path) -> None:
    generator = np.random.default_rng(5)
    state = {
        1: torch.arange(3, dtype=torch.bfloat16),
        "u64": np.array([2**63, 1], dtype=np.uint64),
        "empty": np.zeros((0, 2), dtype=np.float32),
        "flag": np.bool_(True),
        "rng": generator.bit_generator.state,
    }
    save_state(tmp_path, "part", state)
    back = load_state(tmp_path, "part")
    assert torch.equal(back[1], state[1]) and back[1].dtype == torch.bfloat16
    assert back["u64"].tolist() == [2**63, 1] and back["empty"].shape == (0, 2) and back["flag"] is True
    other = np.random.default_rng(0)
    other.bit_generator.state = back["rng"]
    assert other.random() == generator.random()


def test_state_refuses_objects_when_saving_and_when_loading(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"part\.optimizer\.hook is a object"):
        save_state(tmp_path, "part", {"optimizer": {"hook": object()}})
    torch.save({"run": Crash("boo")}, tmp_path / "evil.pt")
    with pytest.raises(UserError, match="not plain data, so it is not loaded"):
        load_state(tmp_path, "evil")


def test_a_part_writes_its_folder(tmp_path: Path) -> None:
    class Saves(Adder):
        def save_pretrained(self, path: Path) -> None:
            (path / "config.json").write_text('{"model_type": "tiny"}')

    with make(tmp_path) as run:
        folder = run.save(1, {"learner": Adder()}, model=Saves())
    assert json.loads((folder / "model" / "config.json").read_text()) == {"model_type": "tiny"}
    assert "model/config.json" in json.loads((folder / "record.json").read_text())["files"]


# -- trajectories and progress --

ids = st.lists(st.integers(0, 5), max_size=6)


@given(st.lists(st.tuples(ids, ids, st.booleans()), max_size=6))
@settings(max_examples=60, deadline=None)
def test_trajectory_lines_are_lossless(parts: list[tuple[list[int], list[int], bool]]) -> None:
    turns, context = [], []
    for prompt, completion, fresh in parts:
        context = prompt if fresh else context + prompt
        turns.append(Turn(list(context), completion, [-1.0] * len(completion)))
        context = context + completion
    trajectory = Trajectory(Task.of("x"), turns, reward=1.0)
    line = json.loads(json.dumps(trajectory_record(trajectory) | {"step": 1, "stage": "", "group": 0, "index": 0}))
    assert read_trajectory(line).to_json() == trajectory.to_json()


class Terminal:
    """A console that keeps what was printed; time moves by hand."""

    def __init__(self) -> None:
        from rich.console import Console

        self.now = 0.0
        import io

        self.console = Console(file=io.StringIO(), width=100)
        self.board = ProgressBoard("lines", console=self.console, clock=lambda: self.now)

    def lines(self) -> list[str]:
        return self.console.file.getvalue().splitlines()  # type: ignore[attr-defined, no-any-return]


def test_lines_come_at_sensible_intervals() -> None:
    terminal = Terminal()
    with terminal.board.track("train", 100) as bar:
        for _ in range(100):
            terminal.now += 10.0
            bar.show({"reward": 0.4242, "kl": 1.0})
            bar.advance()
    lines = terminal.lines()
    assert lines[0] == "train 1/100, reward 0.424, 10 s elapsed, 16 min left"
    assert lines[-1] == "train 100/100, reward 0.424, 17 min elapsed"
    assert 15 <= len(lines) <= 25


def test_a_short_loop_prints_nothing() -> None:
    terminal = Terminal()
    with terminal.board.track("train", 40) as bar:
        for _ in range(40):
            terminal.now += 0.1
            bar.advance()
    assert terminal.lines() == []


def test_duration() -> None:
    assert [duration(s) for s in (3.4, 59.6, 200, 3700, 900)] == ["3 s", "1 min", "3 min 20 s", "1 h 1 min", "15 min"]


# -- reading and export --


def test_load_run_reads_metrics_and_finds_trajectories(tmp_path: Path) -> None:
    from rich.console import Console

    with make(tmp_path) as run:
        with run.stage("a"):
            play(run, 3)
        with run.stage("b"):
            run.log(1, {"reward": float("nan"), "kl": 0.5})
            wrong = group(9)
            wrong.trajectories[0].verdict, wrong.trajectories[0].reward = Verdict.WRONG, 0.0
            wrong.trajectories[0].turns[1].advantage = [-0.5]
            short = Trajectory(wrong.task, [Turn([1], [2], [-0.1])], reward=0.0, verdict=Verdict.WRONG)
            run.trajectories(1, [wrong, Group(wrong.task, [short])])
    loaded = load_run(run.dir)
    rewards = loaded.metrics["reward"]
    assert rewards.shape == (4,) and rewards[2] > rewards[0] and np.isnan(rewards[3])
    assert loaded.metrics.at("kl")[0].tolist() == [1] and loaded.metrics.stages == ["a", "b"]
    assert loaded.metrics.stage("a")["real"].tolist() == [10, 20, 30]
    with pytest.raises(UserError, match=r'Unknown metric "rewrd"\. Did you mean reward'):
        loaded.metrics["rewrd"]
    assert loaded.config == {"lr": 0.1}
    found = loaded.trajectories.where(verdict="wrong").sort("length")
    assert [t.trajectory.length for t in found] == [1, 3] and found[0].trajectory.to_json() == short.to_json()
    worst = loaded.trajectories.pick("worst")
    assert worst.trajectory.to_json() == wrong.trajectories[0].to_json() and (worst.step, worst.stage) == (1, "b")
    with pytest.raises(UserError, match='Unknown field "verdcit"'):
        loaded.trajectories.where(verdcit="wrong")
    console = Console(width=100, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    worst.show(console)
    text = console.export_text()
    for part in (
        "verdict wrong",
        "hello",
        "turn 1, 1 tokens, reward 1",
        "advantage by token: 6 -0.50",
        "log-prob -0.30",
    ):
        assert part in text


def full_trajectory() -> Trajectory:
    """A tree with a tool reply, a rewritten context, a probe and everything a turn can carry."""
    call = ToolCall("look", '{"where": "sky"}', "c1")
    context = (
        Message("system", "Rules."),
        Message("assistant", "Let me look.", (call, ToolCall("bad", "{not json", ""))),
        Message("tool", "blue", tool_call_id="c1"),
        Message("user", (Part("text", "What is this?"), Part("image", image="sky.jpg"))),
    )
    turns = [
        Turn([1, 2], [3], [-0.5], context=context, text="sky", tag="plan", version=[4], entropy=[0.7], value=[0.1]),
        Turn(
            [1, 2, 3, 9], [4, 5], [-0.1, -0.25], 0, 1.0, context=(Message("tool", "ok"),), stop="tool", text="x\u2028y"
        ),
        Turn([1, 2, 3, 8], [6], [-0.125], 0, trainable=False, context=(Message.user("no"),), temperature=0.5),
        Turn([7], [8], [], None, context=(Message.user("memory"),), advantage=[0.5], support=[np.array([8, 9])]),
    ]
    return Trajectory(Task.of("q", answer="a"), turns, 0.5, {"f": 1.0}, Verdict.NO_ANSWER, None, 7, True, 3, {"k": [1]})


def test_atif_round_trip_through_its_models() -> None:
    trajectory = full_trajectory()
    document = to_atif(trajectory, model="tiny", session="t-1", step=4)
    again = atif.Trajectory.model_validate_json(json.dumps(document.to_json_dict()))
    assert from_atif(again).to_json() == trajectory.to_json()
    agents = [s for s in again.steps if s.source == "agent" and not s.is_copied_context]
    assert [s.metrics.completion_token_ids for s in agents if s.metrics] == [[3], [4, 5], [6], [8]]
    assert agents[1].metrics is not None and agents[1].metrics.logprobs == [-0.1, -0.25]
    assert agents[0].observation is not None and agents[0].observation.results[0].content == "ok"
    assert agents[1].observation is None, "a sibling branch is no reply to the turn written before it"
    examples = [s for s in again.steps if s.is_copied_context]
    assert [c.arguments for c in examples[0].tool_calls or []] == [{"where": "sky"}, {"_text": "{not json"}]
    assert again.schema_version == "ATIF-v1.8" and again.final_metrics is not None
    assert again.final_metrics.total_completion_tokens == 5


def test_atif_files_and_a_failed_episode(tmp_path: Path) -> None:
    failed = Trajectory(Task((Message.user("hello"),)), [], failure="the environment died")
    with make(tmp_path) as run:
        run.trajectories(1, [Group(failed.task, [failed, full_trajectory()])])
    files = export_atif(load_run(run.dir).trajectories, tmp_path / "out", run=run.name)
    assert [f.name for f in files] == ["step000001-g0-0.json", "step000001-g0-1.json"]
    back = atif.Trajectory.model_validate_json(files[0].read_text())
    assert from_atif(back).to_json() == failed.to_json() and back.steps[0].message == "hello"
    with pytest.raises(UserError, match="not exported by rlready"):
        from_atif(back.model_copy(update={"extra": None}))
