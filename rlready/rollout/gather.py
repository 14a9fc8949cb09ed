"""Running many coroutines: the first error ends all, cancelled ones are waited for, finished ones are counted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

log = logging.getLogger(__name__)
T = TypeVar("T")
Progress = Callable[[int, int], None]


async def together(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines concurrently; the first error cancels the others, waits for them, and is raised as it is."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await settle(tasks)
        raise


async def settle(tasks: Sequence[asyncio.Task[Any]], seconds: float = 15.0) -> None:
    """Wait until cancelled tasks have ended, but not for ever."""
    if not tasks:
        return
    done, stubborn = await asyncio.wait(tasks, timeout=seconds)
    for task in done:
        if not task.cancelled():
            task.exception()  # seen; the first error is the one that is raised
    if stubborn:
        log.error("%d tasks ignore their cancellation and were abandoned.", len(stubborn))


def counted(on_progress: Progress | None, done: int, total: int) -> Callable[[], None]:
    """A function that counts one more finished episode."""
    count = done

    def report() -> None:
        nonlocal count
        count += 1
        if on_progress is not None:
            on_progress(count, total)

    return report
