"""Trajectories to rows: which tokens are trained, once, with what beside them.

One rule, the *exact prefix*. A turn continues its parent where its prompt starts with exactly the parent's prompt and
completion. Then both fit in one row, since the row's tokens are the last turn's context and completion. Everywhere else
a new row starts:

    tool chain                   every turn continues its parent             one row
    chunk, memory, stage         parent None, or the prompt does not         a row each
                                 extend it: the context was rewritten
    second child (tree)          the first child has grown the parent's      a row; the shared turns are context in it
                                 row
    probe (`trainable=False`)    nothing in it is trained                    none, unless a trained turn continues it

So none of them needs a mode. Every trainable sampled token is trained exactly once; `shared="every"` is the one
exception, where each branch trains the turns it shares again.

The stream "observe" is the one that weighs context rather than completions: what a trainable turn saw anew after its
parent's completion, that is the environment's reply with the dialect's own tokens around it (ECHO, arXiv 2605.24517).
A first prompt and a rewritten context weigh nothing in it. Where several turns continue a parent with the same reply,
it is weighed in the first one's row alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from rlready.errors import UserError
from rlready.types import FloatArray, Group, IntArray, Row, Trajectory, Turn

Shared = Literal["once", "every"]

OBSERVE = "observe"
"""The stream on the environment's replies."""


class CompileError(UserError, ValueError):
    """A turn cannot be trained on; the message names it and says what to do."""


def compile_groups(
    groups: Sequence[Group], *, streams: Sequence[str] = ("policy",), shared: Shared = "once"
) -> list[Row]:
    """Turn groups into rows, in the order of groups, trajectories and first turns.

    Args:
        groups: excluded trajectories in them are left out, but keep their index.
        streams: loss streams; each gets weight 1 on every trainable completion token, but "observe" on the replies
            that trainable turns saw.
        shared: whether turns that several branches share are trained "once", or in "every" branch.

    Returns:
        Rows with at least one trained token. `Row.trajectory` counts over all trajectories of all groups.

    Raises:
        CompileError: a trained turn lacks what a stream needs ("policy": advantage and log-probs), or holds a wrong
            number of values or one that is not finite, or names a parent that is not an earlier turn.
    """
    compiler = _Compiler(streams, shared)
    rows: list[Row] = []
    index = 0
    for g, group in enumerate(groups):
        for place, trajectory in enumerate(group.trajectories):
            if not trajectory.excluded:
                rows.extend(compiler.rows(trajectory, place, index, g))
            index += 1
    return rows


def compile_trajectory(
    trajectory: Trajectory, *, streams: Sequence[str] = ("policy",), shared: Shared = "once"
) -> list[Row]:
    """The rows of one trajectory, as `compile_groups` would make them; excluded or not.

    Raises:
        CompileError: as `compile_groups`.
    """
    return _Compiler(streams, shared).rows(trajectory, 0, 0, 0)


def chains(trajectory: Trajectory, *, shared: Shared = "once", place: int = 0) -> list[list[int]]:
    """The turns that each row holds, by index; the last one's context and completion are the row's tokens.

    Raises:
        CompileError: a turn's parent is not an earlier turn.
    """
    turns = trajectory.turns
    n = len(turns)
    used = [bool(turn.trainable and turn.completion_ids) for turn in turns]
    trained = list(used)
    link: list[int | None] = [None] * n
    for i in range(
        n - 1, -1, -1
    ):  # children before parents: a turn is used where it, or one that continues it, is trained
        parent = turns[i].parent
        if parent is None:
            continue
        if not 0 <= parent < i:
            raise _error(trajectory, place, i, f"has parent {parent}", "A parent is an earlier turn's index, or None")
        if used[i] and _extends(turns[i], turns[parent]):
            link[i] = parent
            used[parent] = True

    heir: dict[int, int] = {}
    for i, parent in enumerate(link):
        # The first trained child grows the parent's row; a probe grows it only where no sibling is trained.
        if parent is not None and (parent not in heir or (trained[i] and not trained[heir[parent]])):
            heir[parent] = i

    out: list[list[int]] = []
    row_of: dict[int, list[int]] = {}
    for i in range(n):
        if not used[i]:
            continue
        parent = link[i]
        if parent is not None and heir[parent] == i:
            row = row_of[parent]
            row.append(i)
        else:
            row = [*_ancestors(link, i), i] if shared == "every" else [i]
            out.append(row)
        row_of[i] = row
    return out


def _extends(turn: Turn, parent: Turn) -> bool:
    """Whether the turn's prompt starts with exactly the parent's prompt and completion."""
    a, b = len(parent.prompt_ids), len(parent.prompt_ids) + len(parent.completion_ids)
    prompt = turn.prompt_ids
    return len(prompt) >= b and prompt[a:b] == parent.completion_ids and prompt[:a] == parent.prompt_ids


def _ancestors(link: Sequence[int | None], i: int) -> list[int]:
    out: list[int] = []
    parent = link[i]
    while parent is not None:
        out.append(parent)
        parent = link[parent]
    return out[::-1]


class _Compiler:
    """Builds rows; supports that are equal become one array for the whole batch."""

    def __init__(self, streams: Sequence[str], shared: Shared) -> None:
        if not streams:
            raise ValueError("compile needs at least one loss stream.")
        self.streams = tuple(streams)
        self.shared = shared
        self._support_by_id: dict[int, IntArray] = {}
        self._support_by_content: dict[bytes, IntArray] = {}

    def rows(self, trajectory: Trajectory, place: int, index: int, group: int) -> list[Row]:
        """The rows of one trajectory. `place` is its index in its group, for messages."""
        every = chains(trajectory, shared=self.shared, place=place)
        made = [self._row(trajectory, chain, place, index, group) for chain in every]
        if OBSERVE in self.streams:
            self._observe(trajectory, every, made)
        return made

    def _observe(self, trajectory: Trajectory, every: Sequence[Sequence[int]], rows: Sequence[Row]) -> None:
        """Weigh the replies that each row's trainable turns saw anew."""
        turns = trajectory.turns
        seen: set[tuple[int, tuple[int, ...]]] = set()
        for chain, row in zip(every, rows, strict=True):
            weight = np.zeros(len(row), dtype=np.float32)
            for turn in (turns[i] for i in chain):
                if not turn.trainable or turn.parent is None or not _extends(turn, turns[turn.parent]):
                    continue
                parent = turns[turn.parent]
                start, stop = len(parent.prompt_ids) + len(parent.completion_ids), len(turn.prompt_ids)
                reply = (turn.parent, tuple(turn.prompt_ids[start:stop]))
                if self.shared == "every" or reply not in seen:
                    weight[start:stop] = 1.0
                    seen.add(reply)
            row.weights[OBSERVE] = weight

    def _row(self, trajectory: Trajectory, chain: Sequence[int], place: int, index: int, group: int) -> Row:
        turns = trajectory.turns
        tail = turns[chain[-1]]
        tokens = np.asarray(tail.prompt_ids + tail.completion_ids, dtype=np.int64)
        n = len(tokens)
        # One Python list per column over the sampled tokens, written into the arrays at once.
        at: list[int] = []
        owner: list[int] = []
        versions: list[int] = []
        weight: list[float] = []
        logprobs: list[float] = []
        advantage: list[float] = []
        temperature: list[float] = []
        returns: list[float] = []
        values: list[float] = []
        support: list[IntArray | None] = []
        has_returns = has_values = has_support = False
        for i in chain:
            turn = turns[i]
            start, k = len(turn.prompt_ids), len(turn.completion_ids)
            self._check(trajectory, place, i)
            at.extend(range(start, start + k))
            owner.extend([i] * k)
            versions.extend(turn.version if isinstance(turn.version, list) else [turn.version] * k)
            weight.extend([1.0 if turn.trainable else 0.0] * k)
            logprobs.extend(turn.logprobs or [0.0] * k)
            advantage.extend(_spread(turn.advantage if turn.trainable else None, k))
            temperature.extend([turn.temperature or 1.0] * k)  # greedy log-probs are those at temperature 1
            returns.extend(_spread(turn.returns, k))
            values.extend(_spread(turn.value, k))
            support.extend(turn.support or [None] * k)
            has_returns |= turn.returns is not None
            has_values |= turn.value is not None
            has_support |= turn.support is not None

        where = np.asarray(at, dtype=np.int64)
        weights = _scatter(n, where, weight)
        row = Row(
            tokens,
            {name: weights.copy() for name in self.streams},
            _scatter(n, where, logprobs),
            _scatter(n, where, advantage),
            _scatter(n, where, temperature, fill=1.0),
            returns=_scatter(n, where, returns) if has_returns else None,
            values=_scatter(n, where, values) if has_values else None,
            turn=np.full(n, -1, dtype=np.int64),
            version=np.full(n, -1, dtype=np.int64),
            trajectory=index,
            group=group,
        )
        assert row.turn is not None and row.version is not None
        row.turn[where] = owner
        row.version[where] = versions
        if has_support:
            row.support_of = np.full(n, -1, dtype=np.int64)
            row.support_of[where], row.supports = self._supports(support)
        self._check_finite(trajectory, place, row)
        return row

    def _supports(self, support: Sequence[IntArray | None]) -> tuple[list[int], tuple[IntArray, ...]]:
        """Number the supports of a row: by identity first, which is cheap, then by content."""
        local: dict[int, int] = {}
        kept: list[IntArray] = []
        out: list[int] = []
        for ids in support:
            if ids is None:
                out.append(-1)
                continue
            known = self._support_by_id.get(id(ids))
            if known is None:
                array = np.ascontiguousarray(ids, dtype=np.int64)
                known = self._support_by_content.setdefault(array.tobytes(), array)
                self._support_by_id[id(ids)] = known
            number = local.setdefault(id(known), len(kept))
            if number == len(kept):
                kept.append(known)
            out.append(number)
        return out, tuple(kept)

    def _check(self, trajectory: Trajectory, place: int, i: int) -> None:
        """What can be wrong with one turn: numbers of values, and what the policy stream needs."""
        turn = trajectory.turns[i]
        k = len(turn.completion_ids)
        if turn.trainable and not turn.prompt_ids:
            raise _error(
                trajectory, place, i, "has an empty prompt", "Begin it with a start token; the first is never predicted"
            )
        columns = (("logprobs", turn.logprobs or None), ("advantage", turn.advantage), ("returns", turn.returns),
                   ("value", turn.value), ("support", turn.support), ("version", turn.version))  # fmt: skip
        for name, column in columns:
            if column is not None and not isinstance(column, (int, float, np.floating)) and len(column) != k:
                raise _error(trajectory, place, i, f"has {len(column)} {name} for {k} completion tokens", _CURE[name])
        if not turn.trainable or k == 0:
            return
        if "policy" in self.streams:
            if not turn.logprobs:
                raise _error(trajectory, place, i, "has no logprobs", _CURE["logprobs"])
            if turn.advantage is None:
                raise _error(trajectory, place, i, "has no advantage", _CURE["advantage"])
        if "value" in self.streams and turn.returns is None and any(t.returns is not None for t in trajectory.turns):
            raise _error(trajectory, place, i, "has no returns, but other turns do", _CURE["returns"])

    def _check_finite(self, trajectory: Trajectory, place: int, row: Row) -> None:
        columns = {"logprobs": row.logprobs, "advantage": row.advantage, "returns": row.returns, "value": row.values}
        for name, column in columns.items():
            if column is None:
                continue
            bad = ~np.isfinite(column)
            if name == "logprobs":
                bad |= column > 1e-3
            if bad.any():
                assert row.turn is not None
                t = int(np.argmax(bad))
                value = float(column[t])
                what = f"has {name} {value:g} at token {t}" + (
                    ", which is no log-probability" if math.isfinite(value) else ""
                )
                raise _error(trajectory, place, int(row.turn[t]), what, _CURE[name])


_CURE = {
    "logprobs": "Store the sampler's log-probabilities, one per completion token; "
    'to learn from text without them, use the stream "nll"',
    "advantage": "credit() must give every trainable turn a finite number, or one per completion token; "
    'None is not zero. For supervised learning use the stream "nll"',
    "returns": "credit() must give every trainable turn a finite return, or one per completion token",
    "value": "Store one finite value per completion token, or None",
    "version": "Store one policy version for the turn, or one per completion token",
    "support": "Store one array of ids (or None) per completion token",
}


def _error(trajectory: Trajectory, place: int, turn: int, what: str, cure: str) -> CompileError:
    return CompileError(f"Turn {turn} of trajectory {place} of task {trajectory.task.id} {what}. {cure}.")


def _spread(value: float | list[float] | None, k: int) -> list[float]:
    if value is None:
        return [0.0] * k
    if isinstance(value, (int, float, np.floating)):
        return [float(value)] * k
    return list(value)


def _scatter(n: int, where: IntArray, values: Sequence[float], fill: float = 0.0) -> FloatArray:
    out = np.full(n, fill, dtype=np.float32)
    out[where] = values
    return out
