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


def insiders() -> set[int]:
    """Processes of ours in a process-id namespace below this one: whatever runs in a sandbox.

    None of them can come under another process than this one: an orphan falls to the first process of its namespace.
    """
    own = _depth("self")
    return {pid for pid in watch.family(os.getpid(), watch.table()) if _depth(str(pid)) > own}


def _depth(name: str) -> int:
    try:
        lines = Path(f"/proc/{name}/status").read_text().splitlines()
    except OSError:
        return 0
    if any(line.startswith("State:\tZ") for line in lines):
        return 0
    return next((len(line.split()) for line in lines if line.startswith("NSpid:")), 0)


@pytest.fixture
def nothing_left(pool: CodePool) -> Iterator[Callable[[], None]]:
    """Checks, also at the end of the test, that nothing runs in a sandbox that did not at its beginning."""
    pool.start()
    before = insiders()

    def check() -> None:
        end = time.monotonic() + 3
        while insiders() - before:
            assert time.monotonic() < end, f"processes are left: {insiders() - before}"
            time.sleep(0.01)

    yield check
    check()
