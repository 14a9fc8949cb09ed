"""The synchronous heart of the sampler: rows in flight, one step at a time.

`admit` gives waiting rows a slot and finds out how much of their prompt is in the cache already; `step` computes what
is new of every row, draws one token for each, and returns the rows that are finished. Rows are arrays ordered by
slot; nothing is done per row and step in Python but for rows that are new, finished, truncated, or bound to choices.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from rlready.errors import UserError
from rlready.policy.base import Sample, SampleRequest
from rlready.policy.tiny.cache import Cache, shared_prefix
from rlready.policy.tiny.decode import Decoder, build, plan
from rlready.policy.tiny.draw import Drawn, MaskTable, Rule, draw, mix_seeds, uniforms
from rlready.policy.tiny.model import TinyConfig
from rlready.types import IntArray

InFlight = Literal["recompute", "keep"]


@dataclass(slots=True)
class SamplerStats:
    """What the engine did since the last `reset`, times in seconds.

    Attributes:
        forward: time in the model's forward passes, output head included.
        busy: all time in the engine, forward passes included; waiting for callers is not.
        idle: time with nothing to draw, from the first request on.
        tokens: tokens drawn.
        prefill_tokens: prompt tokens computed.
        reused_tokens: prompt tokens found in the cache or shared with an identical prompt.
        steps, requests: engine steps taken, requests served.
    """

    forward: float = 0.0
    busy: float = 0.0
    idle: float = 0.0
    tokens: int = 0
    prefill_tokens: int = 0
    reused_tokens: int = 0
    steps: int = 0
    requests: int = 0

    @property
    def overhead(self) -> float:
        """Share of the busy time spent outside the model's forward passes."""
        return 1 - self.forward / self.busy if self.busy else 0.0

    def reset(self) -> None:
        """Start counting anew."""
        self.__init__()  # type: ignore[misc]


@dataclass(slots=True, eq=False)
class Row:
    """A request on its way.

    Attributes:
        request: what was asked.
        owner, index: for the caller's use.
        slot: its slot of the cache.
        session: the session that keeps the slot afterwards, None where nobody does.
        pending: tokens to compute in the next step; None while it is plainly decoding.
        leader: a row of the same step with the same prompt, whose keys and values are copied.
        versions: of the weights that each of its first tokens was drawn with; those not listed yet are of the present
            weights.
        epoch: which weights computed what is cached of it, counted by `Engine.load`.
        path: tokens drawn so far, kept for rows with choices only.
        node: ids allowed next, for rows with choices.
        support: see `Sample`.
        result: the finished sample.
    """

    request: SampleRequest
    owner: Any = None
    index: int = 0
    slot: int = -1
    session: Hashable = None
    pending: list[int] | None = None
    leader: Row | None = None
    versions: list[int] = field(default_factory=list)
    epoch: int = 0
    path: list[int] | None = None
    node: IntArray | None = None
    support: list[IntArray | None] | None = None
    result: Sample | None = None


class Engine:
    """Rows in flight.

    New weights may come between two steps. With `in_flight="recompute"` rows in flight compute their context again, so
    every token has the log-prob that the weights of its version give it in its whole context: what a learner computes
    at that version. With "keep" they go on over the keys and values they have (Magistral, arXiv 2506.10910, found
    computing them again unnecessary): no time is lost, and log-probs after the change are those of a policy that no
    learner can compute exactly. Either way what was computed under older weights serves nobody else: sessions, copies
    of prefixes and the next turn start from what the present weights computed.

    The arrays, all [B] in the order of `rows`: `slot`; `cached`, tokens of the row in the cache; `count`, tokens
    drawn; `cap`, most tokens to draw; `token`, the last one drawn; `rule`, index into the distinct `Rule`s; `mask`,
    row of the mask table; `noise`, the mixed seed.
    """

    _ARRAYS = ("slot", "cached", "count", "cap", "token", "rule", "mask", "noise")

    def __init__(self, config: TinyConfig, max_batch: int, max_slots: int, in_flight: InFlight = "recompute") -> None:
        if in_flight not in get_args(InFlight):
            raise UserError(f'in_flight="{in_flight}" is unknown; choose {" or ".join(get_args(InFlight))}.')
        self.config = config
        self.max_batch = max_batch
        self.in_flight = in_flight
        self.epoch = 0
        self.cache = Cache(config, max_slots)
        self.decoder = Decoder(config)
        self.masks = MaskTable(config.vocab_size)
        self.stats = SamplerStats()
        self.version = 0
        self.reset()

    def reset(self) -> None:
        """Drop all rows and everything cached."""
        self.cache.reset()
        self.masks.clear()
        self.rows: list[Row] = []
        self.busy: dict[Hashable, Row] = {}
        self._rules: dict[Rule, int] = {}
        self._new = False
        for name in self._ARRAYS:
            setattr(self, name, np.zeros(0, np.uint64 if name == "noise" else np.int64))
        self._tokens = np.zeros((0, 0), np.int64)
        self._logprobs = self._entropy = np.zeros((0, 0), np.float32)

    slot: IntArray
    cached: IntArray
    count: IntArray
    cap: IntArray
    token: IntArray
    rule: IntArray
    mask: IntArray
    noise: np.typing.NDArray[np.uint64]

    def load(self, state: Mapping[str, Tensor], version: int) -> None:
        """Take new weights, for rows in flight as well.

        Raises:
            UserError: they belong to a model of another shape; nothing is changed then.
        """
        self.decoder.load(state)
        self.epoch += 1
        self.cache.forget(self.busy)
        for i, row in enumerate(self.rows):
            drawn = int(self.count[i])
            row.versions += [self.version] * (drawn - len(row.versions))
            if self.in_flight == "recompute" or row.pending is not None:
                row.epoch = self.epoch
                if row.leader is None:
                    row.pending = self._seen(i)
                    self.cached[i] = 0
                    self._new = True
        self.version = version

    def release(self, session: Hashable) -> None:
        """Forget a session; a row in flight goes on without it."""
        row = self.busy.pop(session, None)
        if row is None:
            self.cache.release(session)
        else:
            self.cache.sessions.pop(session, None)
            row.session = None

    def admit(self, waiting: deque[Row]) -> None:
        """Move rows from the queue into flight, as far as batch and slots allow."""
        fresh: list[Row] = []
        kept: list[int] = []
        known: dict[tuple[int, ...], Row] = {}
        while waiting and len(self.rows) + len(fresh) < self.max_batch:
            keep = self._place(waiting[0], known)
            if keep is None:
                break
            row = waiting.popleft()
            row.pending = row.request.prompt_ids[keep:]
            fresh.append(row)
            kept.append(keep)
        if fresh:
            self._join(fresh, kept)

    def _place(self, row: Row, known: dict[tuple[int, ...], Row]) -> int | None:
        """Give a row its slot; return how many tokens of its prompt are there already, None where no slot is free."""
        cache, session, prompt = self.cache, row.request.session, row.request.prompt_ids
        row.epoch = self.epoch
        if session is not None and session not in self.busy:
            slot = cache.sessions.get(session)
            if slot is not None:
                cache.sessions.move_to_end(session)
                self.busy[session] = row
                row.slot, row.session = slot, session
                return min(shared_prefix(cache.tokens[slot], prompt), len(prompt) - 1)
        holder = self.busy.get(session) if session is not None else None
        own = session if holder is None else None
        slot = cache.take(own, self.busy)
        if slot is None:
            return None
        row.slot, row.session = slot, own
        if own is not None:
            self.busy[own] = row
        if holder is not None:
            if holder.epoch != self.epoch:
                return 0
            if holder.pending is not None and not holder.versions and holder.request.prompt_ids == prompt:
                row.leader = holder  # which has drawn nothing yet
                return 0
            keep = min(shared_prefix(self._computed(holder), prompt), len(prompt) - 1)
            cache.copy([holder.slot], [slot], keep)
            return keep
        key = tuple(prompt)
        row.leader = known.get(key)
        if row.leader is None:
            known[key] = row
        return 0

    def _join(self, fresh: list[Row], kept: list[int]) -> None:
        if self.masks.full and not any(row.node is not None for row in self.rows):
            self.masks.clear()
        table: list[tuple[int, ...]] = []
        for row, keep in zip(fresh, kept, strict=True):
            params, prompt = row.request.params, row.request.prompt_ids
            rule = Rule.of(params)
            mask = 0
            if params.choices is not None:
                row.node = params.choices.allowed(())
                assert row.node is not None
                row.path = []
                mask = self.masks.index(row.node)
            if row.leader is None:
                self.stats.prefill_tokens += len(prompt) - keep
                self.stats.reused_tokens += keep
            else:
                self.stats.reused_tokens += len(prompt)
            cap = min(params.max_tokens, self.config.max_len - len(prompt))
            table.append((row.slot, keep, 0, cap, 0, self._rules.setdefault(rule, len(self._rules)), mask))
        columns = np.asarray(table, dtype=np.int64).T
        for name, column in zip(self._ARRAYS, columns, strict=False):
            setattr(self, name, np.concatenate((getattr(self, name), column)))
        self.noise = np.concatenate((self.noise, mix_seeds([row.request.seed for row in fresh])))
        self.rows += fresh
        self._select(np.argsort(self.slot))
        self._new = True
        self.stats.requests += len(fresh)
        shape = (self.cache.slots, max(int(self.cap.max()), self._tokens.shape[1]))
        if shape != self._tokens.shape:
            for name, kind in (("_tokens", np.int64), ("_logprobs", np.float32), ("_entropy", np.float32)):
                old, grown = getattr(self, name), np.zeros(shape, kind)
                grown[: old.shape[0], : old.shape[1]] = old
                setattr(self, name, grown)

    def _select(self, index: IntArray) -> None:
        """Keep these rows in flight, in this order."""
        self.rows = [self.rows[i] for i in index.tolist()]
        for name in self._ARRAYS:
            setattr(self, name, getattr(self, name)[index])

    def _seen(self, i: int) -> list[int]:
        """Prompt and drawn tokens of a row in flight."""
        drawn: list[int] = self._tokens[self.slot[i], : self.count[i]].tolist()
        return self.rows[i].request.prompt_ids + drawn

    def _computed(self, row: Row) -> list[int]:
        """The tokens of a row that are in the cache already."""
        if row.pending is not None:
            return row.request.prompt_ids[: max(0, len(row.request.prompt_ids) - len(row.pending))]
        at = self.rows.index(row)
        return self._seen(at)[: self.cached[at]]

    def step(self) -> list[Row]:
        """Draw one token for every row in flight; return those that are finished.

        Raises:
            FloatingPointError: the model's logits are not finite.
            ValueError: a prompt holds an id outside the vocabulary.
        """
        start = time.perf_counter()
        logits = self._forward()
        if not math.isfinite(float(logits.sum())):
            raise FloatingPointError("The model's logits are not finite: its weights hold inf or nan, or overflow.")
        self.stats.forward += time.perf_counter() - start
        ended = self._draw(logits)
        self.stats.tokens += len(self.rows)
        self.stats.steps += 1
        done = ended | (self.count >= self.cap)
        if not done.any():
            return []
        at = np.flatnonzero(done)
        finished = self._finish(at, ended)
        self._select(np.flatnonzero(~done))
        return finished

    def _forward(self) -> Tensor:
        """Compute what is new of every row; logits of every row's next token, [B, V]."""
        leads = np.arange(len(self.rows))
        source: IntArray | None = None
        new = np.ones(len(self.rows), dtype=np.int64)
        if self._new:
            place = {id(row): i for i, row in enumerate(self.rows)}
            for i, row in enumerate(self.rows):
                if row.pending is not None:
                    new[i] = len(row.pending)
            follows = np.asarray([i for i, row in enumerate(self.rows) if row.leader is not None], dtype=np.int64)
            if len(follows):
                leads = np.setdiff1d(leads, follows)
                source = np.arange(len(self.rows))
                source[follows] = [place[id(self.rows[i].leader)] for i in follows]
        slot, past, count = self.slot[leads], self.cached[leads], new[leads]
        self.cache.ensure(int((past + count).max()))
        hidden = torch.empty(len(leads), self.config.dim)
        for rows, fresh in plan(slot, past, count):
            if self._new:
                parts = [self.rows[i].pending or (int(self.token[i]),) for i in leads[rows].tolist()]
                tokens = np.fromiter(chain.from_iterable(parts), dtype=np.int64, count=int(count[rows].sum()))
                if tokens.min() < 0 or tokens.max() >= self.config.vocab_size:
                    raise ValueError(f"A prompt holds an id outside the vocabulary of {self.config.vocab_size}.")
            else:
                tokens = self.token[rows]
            laid = build(self.cache, rows, fresh, slot[rows], past[rows], count[rows], tokens)
            result = self.decoder.forward(laid, self.cache)
            if len(rows) == len(leads):
                hidden = result
            else:
                hidden[torch.from_numpy(rows)] = result
        self.cached = self.cached + new
        logits = self.decoder.logits(hidden)
        if source is not None:
            self.cached = self.cached[source]
            follows = np.flatnonzero(source != np.arange(len(source)))
            length = int(self.cached[follows].max())
            self.cache.copy(self.slot[source[follows]].tolist(), self.slot[follows].tolist(), length)
            logits = logits.index_select(0, torch.from_numpy(np.searchsorted(leads, source)))
        if self._new:
            for row in self.rows:
                row.pending = row.leader = None
            self._new = False
        return logits

    def _draw(self, logits: Tensor) -> IntArray:
        """Draw and record one token per row; which rows ended by a stop id or a complete choice, [B] bool."""
        ended = np.zeros(len(self.rows), dtype=bool)
        noise = uniforms(self.noise, self.count)
        allowed = self.masks.table.index_select(0, torch.from_numpy(self.mask)) if self.mask.any() else None
        present = np.unique(self.rule)
        rules = list(self._rules)
        for kind in present.tolist():
            rule = rules[kind]
            if len(present) == 1:
                at = np.arange(len(self.rows))
                drawn = draw(logits, rule, noise, allowed)
            else:
                at = np.flatnonzero(self.rule == kind)
                pick = torch.from_numpy(at)
                drawn = draw(logits[pick], rule, noise[pick], None if allowed is None else allowed[pick])
            tokens = drawn.tokens.numpy()
            self.token[at] = tokens
            slot, count = self.slot[at], self.count[at]
            self._tokens[slot, count] = tokens
            self._logprobs[slot, count] = drawn.logprobs.numpy()
            if drawn.entropy is not None:
                self._entropy[slot, count] = drawn.entropy.numpy()
            if len(rule.stop_ids) == 1:
                ended[at] = tokens == rule.stop_ids[0]
            elif rule.stop_ids:
                ended[at] = np.isin(tokens, rule.stop_ids)
            if drawn.kept is not None:
                self._support(at, rule, drawn)
        self.count = self.count + 1
        if allowed is not None:
            self._follow_choices(ended)
        return ended

    def _support(self, at: IntArray, rule: Rule, drawn: Drawn) -> None:
        """Note which ids each token was drawn from."""
        if not rule.truncates:
            for i in at[self.mask[at] > 0].tolist():
                row = self.rows[i]
                if row.support is None:
                    row.support = []
                row.support.append(row.node)
            return
        assert drawn.kept is not None
        kept = drawn.kept.numpy()
        sizes = kept.sum(-1)
        sets = np.split(np.nonzero(kept)[1], np.cumsum(sizes)[:-1])
        for i, ids in zip(at.tolist(), sets, strict=True):
            row = self.rows[i]
            if row.support is None:
                row.support = []
            if row.node is not None and len(row.node) == len(ids):
                ids = row.node
            row.support.append(None if len(ids) == self.config.vocab_size else ids)

    def _follow_choices(self, ended: IntArray) -> None:
        """Walk every row's tree of choices; a complete choice ends its row."""
        for i in np.flatnonzero(self.mask).tolist():
            row = self.rows[i]
            choices, path = row.request.params.choices, row.path
            assert choices is not None and path is not None
            path.append(int(self.token[i]))
            row.node = choices.allowed(path)
            if row.node is None:
                ended[i] = True
            else:
                self.mask[i] = self.masks.index(row.node)

    def _finish(self, at: IntArray, ended: IntArray) -> list[Row]:
        """Make samples of finished rows, and keep or free their slots."""
        slots, counts = self.slot[at], self.count[at].tolist()
        most = max(counts)
        tokens = self._tokens[slots, :most].tolist()
        logprobs = self._logprobs[slots, :most].tolist()
        finished = [self.rows[i] for i in at.tolist()]
        for i, (row, count, end) in enumerate(zip(finished, counts, ended[at].tolist(), strict=True)):
            ids = tokens[i][:count]
            support = row.support
            if support is not None and all(s is None for s in support):
                support = None
            row.versions += [self.version] * (count - len(row.versions))
            version = row.versions if len(set(row.versions)) > 1 else row.versions[0]
            row.result = Sample(ids, logprobs[i][:count], "end" if end else "length", version, support)
            if row.request.params.entropy:
                row.result.entropy = self._entropy[row.slot, :count].tolist()
            self._leave(row, row.request.prompt_ids + ids[:-1])
        return finished

    def _leave(self, row: Row, tokens: list[int]) -> None:
        if row.session is None:
            self.cache.give(row.slot)
        else:
            self.cache.tokens[row.slot] = tokens if row.epoch == self.epoch else []
            self.busy.pop(row.session, None)

    def drop(self, gone: list[Row]) -> None:
        """Take rows out of flight whose callers no longer wait."""
        out = {id(row) for row in gone}
        at = [i for i, row in enumerate(self.rows) if id(row) in out]
        for i in at:
            row = self.rows[i]
            self._leave(row, self._seen(i)[: self.cached[i]])
        for row in self.rows:
            if row.leader is not None and id(row.leader) in out and id(row) not in out:
                row.leader = None
                self.stats.prefill_tokens += len(row.request.prompt_ids)
        self._select(np.setdiff1d(np.arange(len(self.rows)), at))
