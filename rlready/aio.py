"""Small bridges between synchronous and asynchronous code. Nothing here knows what it runs."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end from synchronous code, also where a loop is already running (a notebook).

    Where a loop runs in this thread, the coroutine gets a thread and loop of its own; this call blocks the outer
    loop.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    done: list[T] = []
    failed: list[BaseException] = []

    def work() -> None:
        try:
            done.append(asyncio.run(coroutine))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return done[0]


async def call_in_thread(fn: Callable[..., T], *args: Any) -> T:
    """Run a blocking function in a thread of its own and wait for it without blocking the loop.

    The thread is a daemon: when the waiting side gives up (a deadline), the function runs on, but neither fills up a
    shared pool nor keeps the program from ending. Starting a thread costs some 0.1 ms, so this is for slow functions.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def deliver(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)  # type: ignore[arg-type]
        elif isinstance(error, StopIteration):  # a future cannot carry one
            future.set_exception(RuntimeError("the function raised StopIteration"))
        else:
            future.set_exception(error)

    def work() -> None:
        result, failure = None, None
        try:
            result = context.run(fn, *args)
        except BaseException as error:
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(deliver, result, failure)

    threading.Thread(target=work, daemon=True, name=f"rlready-{getattr(fn, '__name__', 'call')}").start()
    return await future


async def finish_in_thread(fn: Callable[..., T], *args: Any, patience: float = 5.0) -> T:
    """As `call_in_thread`, for functions that change something that others go on to use.

    Where the waiting side is cancelled, the cancellation goes on only when the function has ended, or after so many
    seconds of patience.
    """
    ended = threading.Event()

    def work() -> T:
        try:
            return fn(*args)
        finally:
            ended.set()

    try:
        return await call_in_thread(work)
    except asyncio.CancelledError:
        give_up = time.monotonic() + patience
        while not ended.is_set() and time.monotonic() < give_up:
            await asyncio.sleep(0.01)
        raise
