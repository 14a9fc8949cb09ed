"""The run folder: what it holds, how it resumes, and what it does when something goes wrong."""

from __future__ import annotations

import errno
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from rlready.checkpoint import load_checkpoint, save_checkpoint
from rlready.errors import UserError
from rlready.run import Run, Table
from rlready.run_files import FolderLock, disk_errors
from rlready.run_folder import read_header
from tests.small_run import Adder, Crash, logged, make, play


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


@pytest.mark.parametrize("width", [60, 80, 100, 130, 300])
def test_a_wide_table_is_broken_and_never_cut_off(width: int) -> None:
    columns = ["arm", *(f"seconds a step {i}" for i in range(7))]
    table = Table("Wide", columns, [["minibatches, symmetric clip", *(f"{i}{i}.25 ±{i}.5" for i in range(7))]])
    console = Console(width=width, file=io.StringIO())
    console.print(table.to_rich(console.width))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width and lines[1][-1] == "┓" and "…" not in "".join(lines)
    columns_shown = zip(*(line.split("│")[1:-1] for line in lines if line.startswith("│")), strict=True)
    shown = ["".join("".join(column).split()) for column in columns_shown]
    assert shown == ["minibatches,symmetricclip", *(f"{i}{i}.25±{i}.5" for i in range(7))]
    if width >= 130:  # numbers stay on one line
        assert all(f" {i}{i}.25 ±{i}.5 " in console.file.getvalue() for i in range(7))
