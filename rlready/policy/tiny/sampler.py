"""Continuous batching as an `asyncio` engine.

`sample()` queues its requests and waits. One engine task serves all callers: it lets the other coroutines run until
no new request arrives, admits what is waiting, takes one step for all rows in flight, hands finished ones back, and
starts over. It ends when nothing is left to do, so a sampler holds no task between event loops.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rlready.errors import UserError
from rlready.policy.base import Sample, SampleRequest
from rlready.policy.tiny.engine import Engine, Row, SamplerStats
from rlready.policy.tiny.model import TinyConfig

_QUIET_TICKS = 3
_MOST_TICKS = 64


@dataclass(slots=True, eq=False)
class _Call:
    """One call of `sample`: who waits, and for how many more rows."""

    future: asyncio.Future[None]
    left: int


class TinySampler:
    """Samples from a tiny transformer; implements `policy.base.Sampler`.

    One sampler serves one event loop at a time. New weights may be loaded while requests are in flight: their context
    is computed again, the tokens drawn so far stay, and the sample carries the version its first token was drawn with.

    Attributes:
        stats: counters of work and time, see `SamplerStats`.
    """

    def __init__(
        self,
        config: TinyConfig,
        state: Mapping[str, Any],
        *,
        version: int = 0,
        max_batch: int = 128,
        cache_bytes: int = 1 << 30,
    ) -> None:
        """Take a first set of weights.

        Args:
            config: shape of the model.
            state: its weights, as `TinyLearner.weights()` gives them; they are copied.
            version: their version.
            max_batch: most rows computed in one step; more requests wait.
            cache_bytes: memory for keys and values. Idle sessions beyond it are forgotten, the longest unused first.
                The cache grows as needed and never holds fewer than `max_batch` slots.
        """
        per_slot = 2 * 4 * config.layers * config.kv_heads * config.head_dim * config.max_len
        slots = max(max_batch, min(cache_bytes // per_slot, 8 * max_batch))
        self.config = config
        self._engine = Engine(config, max_batch, slots)
        self._engine.load(state, version)
        self._waiting: deque[Row] = deque()
        self._calls: dict[_Call, None] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def version(self) -> int:
        """Version of the weights in use."""
        return self._engine.version

    @property
    def stats(self) -> SamplerStats:
        """Counters of work and time."""
        return self._engine.stats

    @property
    def max_batch(self) -> int:
        """Most rows computed in one step."""
        return self._engine.max_batch

    def load(self, state: Mapping[str, Any], version: int) -> None:
        """Copy new weights and drop what was cached under the old ones.

        Raises:
            UserError: the weights belong to a model of another shape.
        """
        self._engine.load(state, version)

    def release(self, session: Any) -> None:
        """Forget a session's cache; unknown sessions are no error."""
        self._engine.release(session)

    async def sample(self, requests: Sequence[SampleRequest]) -> list[Sample]:
        """Draw one completion per request, in order.

        Raises:
            UserError: a prompt is empty or leaves no room for a token.
            ValueError: a prompt or a choice holds an id outside the vocabulary, or parameters are out of range.
            FloatingPointError: the weights are not finite.
        """
        if not requests:
            return []
        start = time.perf_counter()
        for request in requests:
            self._check(request)
        loop = self._attach()
        call = _Call(loop.create_future(), len(requests))
        rows = [Row(request, call) for request in requests]
        self._waiting.extend(rows)
        self._calls[call] = None
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._run(), name="rlready-sampler")
        self.stats.busy += time.perf_counter() - start
        try:
            await call.future
        finally:
            self._calls.pop(call, None)
        return [row.result for row in rows if row.result is not None]

    def _check(self, request: SampleRequest) -> None:
        prompt, params = request.prompt_ids, request.params
        if not prompt:
            raise UserError("A request has an empty prompt; give the renderer a start-of-text token or a message.")
        if len(prompt) >= self.config.max_len:
            raise UserError(
                f"A prompt of {len(prompt)} tokens leaves no room in the model's max_len {self.config.max_len}. "
                "Raise max_len, or end the episode sooner."
            )
        if params.max_tokens < 1 or params.temperature < 0 or not 0 < params.top_p <= 1 or not 0 <= params.min_p <= 1:
            raise ValueError(f"Sampling parameters out of range: {params}.")

    def _attach(self) -> asyncio.AbstractEventLoop:
        """The running loop; what an earlier, closed loop left behind is dropped."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._loop is not None and self._loop.is_running():
                raise RuntimeError("A TinySampler serves one event loop at a time; another one is using it.")
            if self._calls or self._waiting or self._engine.rows:
                self._calls.clear()
                self._waiting.clear()
                self._engine.reset()
            self._loop, self._task = loop, None
        return loop

    async def _run(self) -> None:
        """Serve until nothing is left to do; a failure goes to everyone who waits."""
        engine = self._engine
        try:
            settle = True
            while self._waiting or engine.rows:
                await self._let_others_run(settle)
                start = time.perf_counter()
                with torch.inference_mode():
                    self._drop_abandoned()
                    engine.admit(self._waiting)
                    finished = engine.step() if engine.rows else []
                for row in finished:
                    call: _Call = row.owner
                    call.left -= 1
                    if call.left == 0 and not call.future.done():
                        call.future.set_result(None)
                settle = bool(finished)
                engine.stats.busy += time.perf_counter() - start
        except BaseException as error:
            self._fail(error)
            if not isinstance(error, Exception):
                raise

    async def _let_others_run(self, settle: bool) -> None:
        """Yield to the event loop: once, or until requests have stopped arriving."""
        quiet, seen = 0, len(self._waiting)
        for _ in range(_MOST_TICKS):
            await asyncio.sleep(0)
            now = len(self._waiting)
            if now != seen:
                quiet, seen, settle = 0, now, True
            else:
                quiet += 1
            if not settle or quiet >= _QUIET_TICKS:
                return

    def _drop_abandoned(self) -> None:
        """Forget rows whose caller was cancelled."""
        if any(row.owner.future.done() for row in self._waiting):
            self._waiting = deque(row for row in self._waiting if not row.owner.future.done())
        gone = [row for row in self._engine.rows if row.owner.future.done()]
        if gone:
            self._engine.drop(gone)

    def _fail(self, error: BaseException) -> None:
        """Give an error to all callers and start from a clean engine."""
        self._waiting.clear()
        self._engine.reset()
        for call in self._calls:
            if call.future.done():
                continue
            if isinstance(error, Exception):
                call.future.set_exception(error)
            else:
                call.future.cancel()
