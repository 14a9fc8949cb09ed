"""Public faults, each planted in a sound set-up, and the check of the doctor that must name it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from rlready.doctor import Setup

Build = Callable[[], Setup]


@dataclass(frozen=True)
class Fault:
    """One public fault.

    Attributes:
        source: repository and number.
        says: what went wrong, in our words.
        check: the doctor's check that names it.
        level: how.
        build: the set-up with the mistake in it.
    """

    source: str
    says: str
    check: str
    level: Literal["error", "warning"]
    build: Build


FAULTS: list[Fault] = []


def fault(source: str, says: str, check: str, level: Literal["error", "warning"] = "error") -> Callable[[Build], Build]:
    """Register a set-up."""

    def add(build: Build) -> Build:
        FAULTS.append(Fault(source, says, check, level, build))
        return build

    return add
