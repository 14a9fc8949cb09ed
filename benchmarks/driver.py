"""Drives several sides in lockstep: some steps of the first, as many of the second, and so on, then again.

A turn is a few steps, not one. The first step after another process's finds nothing in the processor's caches; training
does not meet that, and it costs a small model a third of its step.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import IO, Self

from sides import Setting, Step

TURN = 5
"""Steps that a side takes in a row."""


class Side:
    """One side's process. Use as a context manager: the process ends with it."""

    def __init__(self, start: Path, steps: int, seed: int, setting: Setting) -> None:
        """Start the process; it loads its model meanwhile."""
        self.setting = setting
        self._errors: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the process)
        command = [
            sys.executable, str(Path(__file__).parent / setting.program),
            str(start), str(steps), str(seed), json.dumps(asdict(setting)),
        ]  # fmt: skip
        env = os.environ | {
            "OMP_NUM_THREADS": str(setting.threads), "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }  # fmt: skip
        if setting.packages:
            env["PYTHONPATH"] = os.pathsep.join(filter(None, [setting.packages, os.environ.get("PYTHONPATH")]))
        self._process = subprocess.Popen(
            command, env=env, text=True, bufsize=1, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors
        )

    def __enter__(self) -> Self:
        """The process itself was started already."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        self._errors.close()

    def ready(self) -> None:
        """Wait until the model is loaded."""
        self._line()

    def step(self) -> Step:
        """Order one step and wait for it."""
        assert self._process.stdin is not None
        self._process.stdin.write("step\n")
        self._process.stdin.flush()
        return Step(**json.loads(self._line()))

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            raise SystemExit(f"{self.setting} failed:\n{self._errors.read()[-3000:]}")
        return line


def lockstep(start: Path, steps: int, seed: int, settings: Sequence[Setting]) -> list[list[Step]]:
    """Train all sides from the same weights on the same tasks, in turns of a few steps; each side's steps."""
    with ExitStack() as stack:
        sides = [stack.enter_context(Side(start, steps, seed, setting)) for setting in settings]
        for side in sides:
            side.ready()
        out: list[list[Step]] = [[] for _ in sides]
        for first in range(0, steps, TURN):
            for taken, side in zip(out, sides, strict=True):
                taken += [side.step() for _ in range(min(TURN, steps - first))]
        return out
