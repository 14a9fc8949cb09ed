"""A pool for attacks and one for plain work; what is left of a program, seen from the host."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rlready.errors import UserError
from rlready.rewards.code import CodePool, Limits, Sandbox
from rlready.rewards.code.inside import watch

SMALL = Limits(memory_mb=96, processes=16, tmp_mb=8, file_mb=8, output_mb=1)


@pytest.fixture(scope="session")
def isolation() -> str:
    """What isolates programs here; tests that need it are skipped where nothing does, with the reason."""
    try:
        return Sandbox().kind
    except UserError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def pool(isolation: str) -> Iterator[CodePool]:
    """A pool for Python with narrow limits, in bubblewrap: the attacks want namespaces of their own around them."""
    if not isolation.startswith("bubblewrap"):
        pytest.skip(f"bubblewrap does not work here; what isolates is {isolation}")
    with CodePool("python", workers=1, limits=SMALL) as made:
        yield made.start()


def insiders() -> dict[int, bool]:
    """Processes of ours in a process-id namespace below this one, each with whether it is the first of its own.

    Whatever runs in a sandbox is among them, and none can come under another process than this one: an orphan falls to
    the first process of its namespace.
    """
    own = len(_numbers("self"))
    found = {pid: _numbers(str(pid)) for pid in watch.family(os.getpid(), watch.table())}
    return {pid: numbers[-1] == "1" for pid, numbers in found.items() if len(numbers) > own}


def _numbers(name: str) -> list[str]:
    """The numbers a process has in its namespaces; none where it is gone."""
    try:
        lines = Path(f"/proc/{name}/status").read_text().splitlines()
    except OSError:
        return []
    if any(line.startswith("State:\tZ") for line in lines):
        return []
    return next((line.split()[1:] for line in lines if line.startswith("NSpid:")), [])


@pytest.fixture
def nothing_left(pool: CodePool) -> Iterator[Callable[[], None]]:
    """Checks, also at the end of the test, that nothing of a program is left.

    What may be new is cells in which nothing runs but their own first process: one is made ahead, others are kept for
    the next program.
    """
    pool.start()
    before = set(insiders())

    def check() -> None:
        end = time.monotonic() + 3
        while True:
            new = {pid: first for pid, first in insiders().items() if pid not in before}
            if len(new) <= 9 and all(new.values()):
                return
            assert time.monotonic() < end, f"processes are left: {new}"
            time.sleep(0.01)

    yield check
    check()
