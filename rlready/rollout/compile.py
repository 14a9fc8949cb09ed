"""Trajectories to rows."""

from __future__ import annotations

from collections.abc import Sequence

from rlready.types import Group, Row


def compile_groups(groups: Sequence[Group], *, streams: Sequence[str] = ("policy",)) -> list[Row]:
    raise NotImplementedError
