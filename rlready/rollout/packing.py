"""Sequences to micro-batches under a token budget, and the share of them that is padding.

Two ways of laying out a micro-batch, told apart by what it costs:

    packed    its sequences lie end to end; it is run at its full budget:   cells = budget
    padded    its sequences are rows of one length, that of the longest:    cells = longest x number

`pack` is Magistral's greedy rule (arXiv 2506.10910): longest first, each sequence into the first micro-batch with room,
else into a new one (first-fit decreasing). It is for packed micro-batches. For padded ones it would fill a batch of
long rows with short ones, each padded to the longest; there the rule is "as many as fit, longest first", which keeps
rows of similar length together (`similar`). The learners of this library pad, and cut by it (`policy.tiny.batching`).
"""

from __future__ import annotations

from collections.abc import Sequence

from rlready.errors import UserError


def pack(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Greedy packing, for micro-batches whose sequences lie end to end.

    Args:
        lengths: tokens of each sequence.
        budget: most tokens in a micro-batch; a longer sequence is alone in one.

    Returns:
        Indices into `lengths` of each micro-batch; every index once.

    Raises:
        UserError: the budget is not positive.
    """
    _check(budget)
    out: list[list[int]] = []
    room: list[int] = []
    for i in _longest_first(lengths):
        place = next((k for k, left in enumerate(room) if lengths[i] <= left), None)
        if place is None:
            out.append([])
            room.append(budget)
            place = len(out) - 1
        out[place].append(i)
        room[place] -= lengths[i]
    return out


def in_order(lengths: Sequence[int], budget: int, *, padded: bool = False) -> list[list[int]]:
    """What one does without a rule: sequences as they arrive, a new micro-batch where the next does not fit.

    Raises:
        UserError: the budget is not positive.
    """
    return _fill(range(len(lengths)), lengths, budget, padded)


def similar(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Micro-batches of padded rows: longest first, a new one where the next row does not fit.

    Raises:
        UserError: the budget is not positive.
    """
    return _fill(_longest_first(lengths), lengths, budget, padded=True)


def padding(lengths: Sequence[int], batches: Sequence[Sequence[int]], budget: int | None = None) -> float:
    """Share of all cells that hold no token of a sequence, in [0, 1).

    Args:
        lengths: tokens of each sequence.
        batches: indices into `lengths` of each micro-batch.
        budget: cells of a packed micro-batch (more where one sequence is longer); None where rows are padded.
    """
    cells = tokens = 0
    for batch in batches:
        held = sum(lengths[i] for i in batch)
        tokens += held
        cells += max(lengths[i] for i in batch) * len(batch) if budget is None else max(budget, held)
    return 1 - tokens / cells if cells else 0.0


def _fill(order: Sequence[int], lengths: Sequence[int], budget: int, padded: bool) -> list[list[int]]:
    _check(budget)
    out: list[list[int]] = []
    longest = held = 0
    for i in order:
        n = lengths[i]
        full = max(longest, n) * (len(out[-1]) + 1) if padded and out else held + n
        if not out or full > budget:
            out.append([])
            longest = held = 0
        out[-1].append(i)
        longest, held = max(longest, n), held + n
    return out


def _longest_first(lengths: Sequence[int]) -> list[int]:
    return sorted(range(len(lengths)), key=lambda i: -lengths[i])


def _check(budget: int) -> None:
    if budget < 1:
        raise UserError(f"Packing: the budget is {budget} tokens; it must be at least 1.")
