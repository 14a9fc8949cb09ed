"""Ctrl-C: once finishes the step and saves, twice leaves at once; both with real signals to a real process."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

from rlready.run_folder import read_header
from tests.small_run import logged

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
    assert process.stderr is not None  # two signals at once may arrive as one, so the second waits for the answer
    assert (
        process.stderr.readline() + process.stderr.readline()
        == "\nFinishing this step, then saving. Ctrl-C again leaves at once.\n"
    )
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode != 0 and "Left at once." in err and "step-00000002 is intact" in err
    out, err = start(tmp_path, resume="t-1").communicate(timeout=60)
    assert out == "at 3\nend 21\n", err
