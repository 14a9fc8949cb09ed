"""Running many coroutines: the first error ends all, cancelled ones are waited for, finished ones are counted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

log = logging.getLogger(__name__)
T = TypeVar("T")
Progress = Callable[[int, int], None]
_abandoned: list[asyncio.Task[Any]] = []  # kept: a coroutine that is thrown away in mid-air runs its cleanup, loopless


async def together(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines concurrently; the first error cancels the others, waits for them, and is raised as it is."""
    tasks = [asyncio.ensure_future(each) for each in work]
    if not tasks:
        return []
    try:
        # Not gather: cancelled, it waits for all its children, and so for ever for one that swallows its cancellation.
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error
        return [task.result() for task in tasks]
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
    for task in stubborn:  # else the end of `asyncio.run` would wait for them, for ever
        asyncio.tasks._unregister_task(task)
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    _abandoned.extend(stubborn)


def counted(on_progress: Progress | None, done: int, total: int) -> Callable[[], None]:
    """A function that counts one more finished episode."""
    count = done

    def report() -> None:
        nonlocal count
        count += 1
        if on_progress is not None:
            on_progress(count, total)

    return report
