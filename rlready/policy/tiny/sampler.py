"""Continuous batching as an `asyncio` engine.

`sample()` queues its requests and waits (`policy.queue`). One task serves all callers: it lets the other coroutines run
until no new request arrives, admits what is waiting, takes one step for all rows in flight, hands finished ones back,
and starts over.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from rlready.policy.base import Sample, SampleRequest
from rlready.policy.queue import Callers, check_request
from rlready.policy.tiny.engine import Engine, InFlight, Row, SamplerStats
from rlready.policy.tiny.model import TinyConfig


class TinySampler:
    """Samples from a tiny transformer; implements `policy.base.Sampler`.

    One sampler serves one event loop at a time. New weights may be loaded while requests are in flight: the tokens
    drawn so far stay, the next ones are drawn with the new weights (see `Engine`), and the sample then carries the
    version of each token.

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
        in_flight: InFlight = "recompute",
    ) -> None:
        """Take a first set of weights.

        Args:
            config: shape of the model.
            state: its weights, as `TinyLearner.weights()` gives them; they are copied.
            version: their version.
            max_batch: most rows computed in one step; more requests wait.
            cache_bytes: memory for keys and values. Idle sessions beyond it are forgotten, the longest unused first.
                The cache grows as needed and never holds fewer than `max_batch` slots.
            in_flight: what becomes of requests in flight when new weights come, see `Engine`.

        Raises:
            UserError: the weights belong to a model of another shape, or `in_flight` is unknown.
        """
        self.config = config
        self._engine = Engine(config, max_batch, slots_for(config, max_batch, cache_bytes), in_flight)
        self._engine.load(state, version)
        self._callers: Callers[Row] = Callers(self._serve, name=type(self).__name__, attached=self._attached)
        self._rested: float | None = None

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
        """Copy new weights; nothing that was cached under the old ones serves a new request.

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
        check_requests(self.config, requests)
        rows = [Row(request) for request in requests]
        self.stats.busy += time.perf_counter() - start
        return await self._callers.ask(rows)

    def _attached(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._engine.rows:
            self._engine.reset()

    async def _serve(self) -> None:
        """Serve until nothing is left to do; after a failure start from a clean engine."""
        engine, callers = self._engine, self._callers
        if self._rested is not None:
            engine.stats.idle += time.perf_counter() - self._rested
        try:
            settle = True
            while callers.waiting or engine.rows:
                await callers.quiet(settle)
                start = time.perf_counter()
                with torch.inference_mode():
                    callers.drop_abandoned()
                    if gone := [row for row in engine.rows if callers.abandoned(row)]:
                        engine.drop(gone)
                    engine.admit(callers.waiting)
                    finished = engine.step() if engine.rows else []
                callers.finished(finished)
                settle = bool(finished)
                engine.stats.busy += time.perf_counter() - start
        except BaseException:
            engine.reset()
            raise
        finally:
            self._rested = time.perf_counter()


def slots_for(config: TinyConfig, max_batch: int, cache_bytes: int) -> int:
    """Slots of a cache of so many bytes, at least `max_batch`."""
    per_slot = 2 * 4 * config.layers * config.kv_heads * config.head_dim * config.max_len
    return max(max_batch, min(cache_bytes // per_slot, 8 * max_batch))


def check_requests(config: TinyConfig, requests: Sequence[SampleRequest]) -> None:
    """Refuse what cannot be sampled; raises as `policy.queue.check_request`."""
    for request in requests:
        check_request(request, config.max_len, f"max_len {config.max_len}. Raise max_len, or end the episode sooner.")
