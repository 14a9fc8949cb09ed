"""Pieces of work on several threads, each of which computes with one.

Torch's own threads split single operations, and most of a tiny model's are over before a second thread has woken up.
Whole micro-batches side by side use the same cores better.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")


def side_by_side(work: Callable[[T], R], pieces: Iterable[T]) -> Iterator[R]:
    """The results of `work` on each piece, in order, on as many threads as torch has.

    Pieces are taken from the iterable in this thread, while the first of them are being worked on. An error is raised
    where its piece's result would come.
    """
    keep_memory()
    threads = torch.get_num_threads()
    return map(work, pieces) if threads == 1 else _pool(threads).map(work, pieces)


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """Threads that have said that they compute alone, which takes some milliseconds; so they stay."""
    all_here = threading.Barrier(threads + 1)

    def alone() -> None:
        torch.get_num_threads()  # takes over the process's number once; without this it would do so later
        torch.set_num_threads(1)
        all_here.wait()

    pool = ThreadPoolExecutor(threads, "micro-batch", initializer=alone)
    for _ in range(threads):
        pool.submit(int)
    all_here.wait()
    torch.set_num_threads(threads)  # what threads that begin later take over
    return pool


os.register_at_fork(after_in_child=_pool.cache_clear)  # a child has none of its parent's threads


@functools.cache
def keep_memory() -> None:
    """Let freed memory stay with the process until it is some 64 MB.

    glibc returns more than a small rest to the system at once, and every step would fetch its activations page by page
    again, on threads of one's own up to a fifth of its time. The rest may be twice the largest block that was ever
    freed, up to 32 MB (mallopt(3), M_TRIM_THRESHOLD); so such a block is freed here. Elsewhere it does nothing.
    """
    torch.empty((1 << 25) - (1 << 16), dtype=torch.uint8)
