"""Pieces of work on several threads, each of which computes with one.

Torch's own threads split single operations, and most of a tiny model's are over before a second thread has woken up.
Whole micro-batches side by side use the same cores better.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")


def side_by_side(work: Callable[[T], R], pieces: Sequence[T]) -> Iterator[R]:
    """The results of `work` on each piece, in order, on as many threads as torch has.

    An error is raised where its piece's result would come; what has begun is finished first.
    """
    keep_memory()
    threads = min(torch.get_num_threads(), len(pieces))
    if threads < 2:
        yield from map(work, pieces)
        return
    before = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield from pool.map(work, pieces)
    finally:
        torch.set_num_threads(before)  # what new threads take over, too


@functools.cache
def keep_memory() -> None:
    """Let freed memory stay with the process until it is some 64 MB.

    glibc returns more than a small rest to the system at once, and every step would fetch its activations page by page
    again, on threads of one's own up to a fifth of its time. The rest may be twice the largest block that was ever
    freed, up to 32 MB (mallopt(3), M_TRIM_THRESHOLD); so such a block is freed here. Elsewhere it does nothing.
    """
    torch.empty((1 << 25) - (1 << 16), dtype=torch.uint8)
