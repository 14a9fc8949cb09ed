"""Between the callers of `sample()` and the work that serves them: one queue for every sampler of ours.

A call puts its rows in line and waits. One task serves all callers; it is started when something waits and ends when
nothing is left to do, so a sampler holds no task between event loops. A caller that is cancelled abandons its rows, a
failure goes to everyone who waits, and what an event loop that died left behind is dropped by the next one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from rlready.errors import UserError
from rlready.policy.base import Sample, SampleRequest

_QUIET_TICKS = 3
_MOST_TICKS = 64


class Waiting(Protocol):
    """A request on its way, as the queue sees it.

    Attributes:
        owner: the queue's own note of who waits.
        result: the sample, once there is one.
    """

    owner: Any
    result: Sample | None


R = TypeVar("R", bound=Waiting)


@dataclass(slots=True, eq=False)
class _Call:
    """One call of `sample`: who waits, and for how many more rows."""

    future: asyncio.Future[None]
    left: int


class Callers(Generic[R]):
    """The queue.

    Attributes:
        waiting: rows that nobody has begun to serve, in the order they came.
    """

    def __init__(
        self,
        serve: Callable[[], Coroutine[Any, Any, None]],
        *,
        name: str,
        attached: Callable[[asyncio.AbstractEventLoop], None] | None = None,
    ) -> None:
        """Say who serves.

        Args:
            serve: takes rows from `waiting`; returns when nothing is left to do. It is started again when a row comes.
            name: of the sampler, for messages.
            attached: called with an event loop that is used for the first time, before its first row is put in line;
                what an earlier loop left is gone from the queue by then.
        """
        self.waiting: deque[R] = deque()
        self._serve = serve
        self._name = name
        self._attached = attached
        self._calls: dict[_Call, None] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    async def ask(self, rows: Sequence[R]) -> list[Sample]:
        """Put rows in line and wait for their results, which come in their order.

        Raises:
            RuntimeError: another event loop uses this sampler.
            BaseException: whatever `serve` raised, or `fail` was given.
        """
        loop = self._attach()
        call = _Call(loop.create_future(), len(rows))
        for row in rows:
            row.owner = call
        self.waiting.extend(rows)
        self._calls[call] = None
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._run(), name=f"rlready-{self._name}")
        try:
            await call.future
        finally:
            self._calls.pop(call, None)
        return [row.result for row in rows if row.result is not None]

    def finished(self, rows: Iterable[R]) -> None:
        """These rows have their results; whoever has all of his goes on."""
        for row in rows:
            call: _Call = row.owner
            call.left -= 1
            if call.left == 0 and not call.future.done():
                call.future.set_result(None)

    @staticmethod
    def abandoned(row: R) -> bool:
        """Whether nobody waits for this row any more."""
        return bool(row.owner.future.done())

    def drop_abandoned(self) -> None:
        """Take abandoned rows out of the line."""
        if any(self.abandoned(row) for row in self.waiting):
            self.waiting = deque(row for row in self.waiting if not self.abandoned(row))

    async def quiet(self, settle: bool = True) -> None:
        """Yield to the event loop: once, or until rows have stopped arriving."""
        quiet, seen = 0, len(self.waiting)
        for _ in range(_MOST_TICKS):
            await asyncio.sleep(0)
            now = len(self.waiting)
            if now != seen:
                quiet, seen, settle = 0, now, True
            else:
                quiet += 1
            if not settle or quiet >= _QUIET_TICKS:
                return

    def fail(self, error: BaseException) -> None:
        """Give an error to all callers."""
        self.waiting.clear()
        for call in self._calls:
            if call.future.done():
                continue
            if isinstance(error, Exception):
                call.future.set_exception(error)
            else:
                call.future.cancel()

    async def _run(self) -> None:
        try:
            await self._serve()
        except BaseException as error:
            self.fail(error)
            if not isinstance(error, Exception):
                raise

    def _attach(self) -> asyncio.AbstractEventLoop:
        """The running loop; what an earlier, closed loop left behind is dropped."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._loop is not None and self._loop.is_running():
                raise RuntimeError(f"A {self._name} serves one event loop at a time; another one is using it.")
            self._calls.clear()
            self.waiting.clear()
            if self._attached is not None:
                self._attached(loop)
            self._loop, self._task = loop, None
        return loop


def check_request(request: SampleRequest, max_len: int, mend: str) -> None:
    """Refuse what cannot be sampled.

    Args:
        request: a caller's.
        max_len: most tokens of prompt and completion that the model takes.
        mend: how a prompt that is too long is mended, the end of a sentence.

    Raises:
        UserError: the prompt is empty or leaves no room for a token.
        ValueError: parameters are out of range.
    """
    prompt, params = request.prompt_ids, request.params
    if not prompt:
        raise UserError("A request has an empty prompt; give the renderer a start-of-text token or a message.")
    if len(prompt) >= max_len:
        raise UserError(f"A prompt of {len(prompt)} tokens leaves no room in the model's {mend}")
    if params.max_tokens < 1 or params.temperature < 0 or not 0 < params.top_p <= 1 or not 0 <= params.min_p <= 1:
        raise ValueError(f"Sampling parameters out of range: {params}.")
