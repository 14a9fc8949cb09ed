"""The sampler of a Hugging Face model, as an `asyncio` service.

`sample()` queues its requests and waits. One task serves all callers: it lets other coroutines run until no new
request arrives, takes up to `max_batch` of them and decodes them to their ends, one token of all at a time, in a
thread, so that the event loop stays free. Requests that arrive meanwhile are the next batch.

With `exact` every request is decoded alone. Then a sample is a function of the request and the weights to the last
bit: sums taken over a batch of another shape differ in their last digits, which now and then turns a greedy choice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import torch

from rlready.aio import call_in_thread
from rlready.policy.base import Sample, SampleRequest
from rlready.policy.hf.body import Body, Weights
from rlready.policy.hf.decode import Decoding, Row
from rlready.policy.hf.prefix import Prefixes
from rlready.policy.queue import Callers, check_request
from rlready.policy.tiny.draw import MaskTable


@dataclass(slots=True)
class HFStats:
    """What the sampler did, times in seconds.

    Attributes:
        busy: time in the model and in drawing.
        tokens, requests, batches: drawn, served, decoded together.
    """

    busy: float = 0.0
    tokens: int = 0
    requests: int = 0
    batches: int = 0


@dataclass(slots=True, eq=False, weakref_slot=True)
class _Held:
    """A set of trainable tensors and what was computed with it; `tensors` is None while they are the live ones."""

    tensors: Weights | None
    version: int
    prefixes: Prefixes


class HFSampler:
    """Samples from a Hugging Face model; implements `policy.base.Sampler`.

    One sampler serves one event loop at a time. New weights take effect with the next batch; one in flight ends with
    those it began with, so there is no `in_flight` to choose; nor is there a process of its own, which `policy.process`
    refuses. Sessions need no care: prefixes are recognised by their tokens (`prefix.Prefixes`), whoever asks.

    Attributes:
        exact: decode each request alone.
        max_batch: most requests decoded together.
        stats: counters.
        cache_bytes: memory for prompt prefixes.
    """

    def __init__(
        self, body: Body, *, version: int = 0, exact: bool = False, max_batch: int = 32, cache_bytes: int = 1 << 30
    ) -> None:
        """Share a model; its live weights are in use until `load`, or as they were before their next change.

        Args:
            body: the model.
            version: of its weights.
            exact: decode each request alone, so that the same request gives the same bits whatever else is asked.
            max_batch: most requests decoded together.
            cache_bytes: memory for prompt prefixes.
        """
        self.body = body
        self.exact = exact
        self.max_batch = max_batch
        self.stats = HFStats()
        self.cache_bytes = cache_bytes
        self._masks = MaskTable(body.vocab_size)
        self._sharing: WeakSet[_Held] = WeakSet()
        self._hold(None, version)
        self._callers: Callers[Row] = Callers(self._serve, name=type(self).__name__)
        body.on_change(self._keep_weights)

    @property
    def version(self) -> int:
        """Version of the weights in use."""
        return self._held.version

    @property
    def prefixes(self) -> Prefixes:
        """The store of prompt prefixes, made anew with every set of weights."""
        return self._held.prefixes

    def load(self, state: Mapping[str, Any], version: int) -> None:
        """Take new weights. The live ones are not copied before they change.

        Raises:
            UserError: the weights belong to another model.
        """
        self.body.check(state, "The weights to load")
        shared = self.body.shares(state)
        self._hold(None if shared else {name: t.detach().clone() for name, t in state.items()}, version)

    def release(self, session: Any) -> None:
        """Nothing is kept for a session; the store of prefixes bounds itself."""

    async def sample(self, requests: Sequence[SampleRequest]) -> list[Sample]:
        """Draw one completion per request, in order.

        Raises:
            UserError: a prompt is empty or leaves no room for a token.
            ValueError: a prompt or a choice holds an id outside the vocabulary, or parameters are out of range.
            FloatingPointError: the model's logits are not finite.
        """
        if not requests:
            return []
        for request in requests:
            self._check(request)
        return await self._callers.ask([Row(request) for request in requests])

    def _hold(self, tensors: Weights | None, version: int) -> None:
        self._held = _Held(tensors, version, Prefixes(self.body, self.cache_bytes))
        if tensors is None:
            self._sharing.add(self._held)

    def _check(self, request: SampleRequest) -> None:
        prompt = request.prompt_ids
        mend = "Show fewer demonstrations, end the episode sooner, or take a model with a longer context."
        check_request(request, self.body.max_len, f"context of {self.body.max_len}. {mend}")
        if min(prompt) < 0 or max(prompt) >= self.body.vocab_size:
            raise ValueError(f"A prompt holds an id outside the vocabulary of {self.body.vocab_size}.")

    def _keep_weights(self) -> None:
        """The live weights are about to change: who computes with them takes a copy."""
        copy: Weights | None = None
        for held in list(self._sharing):
            if copy is None:
                copy = self.body.copy()
            held.tensors = copy
        self._sharing.clear()

    async def _serve(self) -> None:
        """Serve until nothing is left to do."""
        callers = self._callers
        while callers.waiting:
            await callers.quiet()
            rows: list[Row] = []
            while callers.waiting and len(rows) < (1 if self.exact else self.max_batch):
                row = callers.waiting.popleft()
                if not callers.abandoned(row):
                    rows.append(row)
            if rows:
                await self._decode(rows)

    async def _decode(self, rows: list[Row]) -> None:
        held = self._held
        for row in rows:
            row.version = held.version
        self.stats.batches += 1
        self.stats.requests += len(rows)
        decoding = Decoding(self.body, held.prefixes, self._masks, rows, on_cpu=self.exact)
        finished = await call_in_thread(self._compute, held, decoding, decoding.start)
        while True:
            self._callers.finished(finished)
            gone = {id(row) for row in decoding.rows if self._callers.abandoned(row)}
            if gone:
                decoding.drop(gone)
            if not decoding.rows:
                return
            finished = await call_in_thread(self._compute, held, decoding, decoding.step)

    def _compute(self, held: _Held, decoding: Decoding, what: Callable[[], list[Row]]) -> list[Row]:
        start = time.perf_counter()
        with torch.inference_mode(), self.body.using(held):
            self.stats.tokens += len(decoding.rows)
            finished = what()
        self.stats.busy += time.perf_counter() - start
        return finished
