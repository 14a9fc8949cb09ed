"""Retrieval of recorded transitions that resemble the present (state, action).

The index is exact: cosine similarity of encoded state texts, within the bucket of the same action, in all buckets
where that one is short. Encoded vectors are kept unnormalised beside their inverse norms. The default encoder hashes
word n-grams to small whole numbers, whose dot products are exact in float32, so scores do not depend on batching;
ties are broken by a hash of the case, so answers do not depend on the order in which cases came. (Others measured
that learned embeddings never beat character hashing for simulators; they plug in as an `Encoder` all the same.)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from rlready.experience.store import SYNTHETIC
from rlready.seeds import derive
from rlready.types import FloatArray, IntArray


class Encoder(Protocol):
    """Turns texts into vectors whose cosine tells how alike they are."""

    @property
    def dim(self) -> int:
        """Length of a vector."""
        ...

    def encode(self, texts: Sequence[str]) -> FloatArray:
        """Vectors [len(texts), dim], of any length; an all-zero vector resembles nothing."""
        ...


class HashedEncoder:
    """Signed feature hashing of word n-grams; needs no model and no fitting.

    Weinberger et al. 2009 ("Feature hashing for large scale multitask learning"): each n-gram adds +1 or -1, both
    chosen by its hash, to one of `dim` counters. Entries are whole numbers.
    """

    def __init__(self, dim: int = 256, *, ngrams: int = 2) -> None:
        """Choose the number of counters and the longest n-gram, in words."""
        self.dim = dim
        self.ngrams = ngrams
        self._known: dict[tuple[str, ...], tuple[int, float]] = {}

    def encode(self, texts: Sequence[str]) -> FloatArray:
        """Vectors [len(texts), dim] of whole numbers."""
        out = np.zeros((len(texts), self.dim), dtype=np.float32)
        for row, text in zip(out, texts, strict=True):
            words = text.split()
            for n in range(1, self.ngrams + 1):
                for gram in zip(*(words[i:] for i in range(n)), strict=False):
                    found = self._known.get(gram)
                    if found is None:
                        h = derive("ngram", gram)
                        found = self._known[gram] = (h // 2 % self.dim, 1.0 if h % 2 else -1.0)
                    row[found[0]] += found[1]
        return out


@dataclass(frozen=True, slots=True)
class Case:
    """A recorded transition, as it is retrieved.

    Attributes:
        state: the text that is compared.
        action: the bucket.
        reply: what came back.
        trajectory, task: whose it is, so that a query can exclude its own.
        source: "synthetic" for what a model made up; anything else is grounded in reality.
    """

    state: str
    action: str
    reply: str
    trajectory: str
    task: str
    source: str = "offline"


@dataclass(frozen=True, slots=True)
class Query:
    """What to look for, and whose transitions must not come back."""

    state: str
    action: str
    trajectory: str | None = None
    task: str | None = None


@dataclass(frozen=True, slots=True)
class Hit:
    """A retrieved transition and its cosine with the query."""

    case: Case
    score: float


@dataclass(eq=False)
class _Bucket:
    """All cases of one action; arrays grow by doubling. `owners[i]`: trajectory to task, of all that saw case i."""

    dim: int
    cases: list[Case] = field(default_factory=list)
    owners: list[dict[str, str]] = field(default_factory=list)
    vectors: FloatArray = field(init=False)
    inverse: FloatArray = field(init=False)
    alive: np.ndarray = field(init=False)
    grounded: np.ndarray = field(init=False)
    rank: IntArray = field(init=False)
    # Two owners of different tasks (or, where all owners share one task, two trajectories) are enough to know whether a
    # query's exclusion leaves a case standing.
    marks: IntArray = field(init=False)

    def __post_init__(self) -> None:
        self.vectors = np.zeros((self.dim, 16), dtype=np.float32)
        self.inverse = np.zeros(16, dtype=np.float32)
        self.alive = np.zeros(16, dtype=bool)
        self.grounded = np.zeros(16, dtype=bool)
        self.rank = np.zeros(16, dtype=np.int64)
        self.marks = np.full((4, 16), -1, dtype=np.int64)

    def add(self, case: Case, vector: FloatArray, inverse: float) -> int:
        n = len(self.cases)
        if n == self.inverse.size:
            self.vectors = np.concatenate([self.vectors, np.zeros_like(self.vectors)], axis=1)
            self.inverse = np.concatenate([self.inverse, np.zeros_like(self.inverse)])
            self.alive = np.concatenate([self.alive, np.zeros_like(self.alive)])
            self.grounded = np.concatenate([self.grounded, np.zeros_like(self.grounded)])
            self.rank = np.concatenate([self.rank, np.zeros_like(self.rank)])
            self.marks = np.concatenate([self.marks, np.full_like(self.marks, -1)], axis=1)
        self.cases.append(case)
        self.owners.append({})
        self.vectors[:, n] = vector
        self.inverse[n] = inverse
        self.rank[n] = derive("tie", case.action, case.reply, vector.tobytes())
        return n

    def scores(self, vectors: FloatArray, inverse: FloatArray) -> FloatArray:
        """Cosines [queries, cases]. Only the counters that a query touches are read."""
        n = len(self.cases)
        if len(vectors) == 1:
            touched = np.flatnonzero(vectors[0])
            raw = vectors[0, touched] @ self.vectors[touched, :n]
            return np.asarray(raw * (self.inverse[:n] * inverse[0]), dtype=np.float32)[None]
        raw = vectors @ self.vectors[:, :n]
        return np.asarray(raw * (self.inverse[:n] * inverse[:, None]), dtype=np.float32)

    def open_to(self, trajectory: int, task: int) -> np.ndarray:
        """Which cases a query may see [cases]."""
        n = len(self.cases)
        if trajectory < 0 and task < 0:
            return self.alive[:n]
        t1, k1, t2, k2 = self.marks[:, :n]
        first = (t1 != trajectory) & (k1 != task)
        second = (t2 >= 0) & (t2 != trajectory) & (k2 != task)
        return np.asarray(self.alive[:n] & (first | second))


_Found = tuple[float, _Bucket, int]


class Retriever:
    """Exact top-k over recorded transitions, with quotas against self-made evidence.

    At most half of any answer is synthetic, and never more than what is grounded in it. A case that is recorded again
    by another trajectory is kept once, with both owners, so that excluding one of them does not hide the other's
    evidence.
    """

    def __init__(self, encoder: Encoder | None = None, *, near: float = 0.95, isolated: Collection[str] = ()) -> None:
        """Make an empty index.

        Args:
            encoder: of state texts; `HashedEncoder()` by default.
            near: of two hits with the same action and reply, the lesser is dropped where their cosine exceeds this.
            isolated: buckets that never borrow from others, such as the closing action, whose reply is a judgement.
        """
        self.encoder: Encoder = encoder or HashedEncoder()
        self.near = near
        self.isolated = frozenset(isolated)
        self._buckets: dict[str, _Bucket] = {}
        self._ids: dict[str, int] = {}
        self._seen: dict[tuple[str, str, bytes], int] = {}
        self._made_up = False
        self._dead = 0
        self._of: dict[str, list[tuple[str, int]]] = {}

    def __len__(self) -> int:
        """Number of distinct live cases."""
        return sum(int(b.alive.sum()) for b in self._buckets.values())

    @property
    def coverage(self) -> dict[str, int]:
        """Distinct live cases per action."""
        return {action: int(b.alive.sum()) for action, b in sorted(self._buckets.items())}

    def add(self, cases: Iterable[Case]) -> int:
        """Index transitions; return how many were new. Exact repeats only gain an owner."""
        cases = list(cases)
        if not cases:
            return 0
        vectors = self.encoder.encode([c.state for c in cases])
        inverse = _inverse_norms(vectors)
        new = 0
        for case, vector, inv in zip(cases, vectors, inverse, strict=True):
            key = (case.action, case.reply, vector.tobytes())
            bucket = self._buckets.setdefault(case.action, _Bucket(self.encoder.dim))
            slot = self._seen.get(key)
            if slot is None:
                slot = self._seen[key] = bucket.add(case, vector, float(inv))
                new += 1
            elif not bucket.alive[slot]:
                new += 1
            if case.source == SYNTHETIC:
                self._made_up = True
            elif not bucket.grounded[slot]:
                bucket.grounded[slot] = True
                bucket.cases[slot] = case
            bucket.owners[slot][case.trajectory] = case.task
            self._of.setdefault(case.trajectory, []).append((case.action, slot))
            self._mark(bucket, slot)
        return new

    def remove(self, trajectories: Iterable[str]) -> int:
        """Take back what these trajectories recorded; return how many cases vanished with their last owner."""
        gone = 0
        for trajectory in trajectories:
            for action, slot in self._of.pop(trajectory, ()):
                bucket = self._buckets[action]
                if bucket.owners[slot].pop(trajectory, None) is not None:
                    self._mark(bucket, slot)
                    gone += not bucket.alive[slot]
        self._dead += gone
        if self._dead > 1000 + len(self):
            self._rebuild()
        return gone

    def topk(
        self, state: str, action: str, k: int, *, trajectory: str | None = None, task: str | None = None
    ) -> list[Hit]:
        """The k most similar transitions, best first, without those of the excluded trajectory and task."""
        return self.search([Query(state, action, trajectory, task)], k)[0]

    def search(self, queries: Sequence[Query], k: int) -> list[list[Hit]]:
        """`topk` for many queries, one matrix product per action."""
        if not queries or k <= 0:
            return [[] for _ in queries]
        vectors = self.encoder.encode([q.state for q in queries])
        inverse = _inverse_norms(vectors)
        by_action: dict[str, list[int]] = {}
        for i, q in enumerate(queries):
            by_action.setdefault(q.action, []).append(i)
        out: list[list[Hit]] = [[] for _ in queries]
        for action, rows in by_action.items():
            bucket = self._buckets.get(action)
            for start in range(0, len(rows), 1024):
                part = rows[start : start + 1024]
                scores = None if bucket is None else bucket.scores(vectors[part], inverse[part])
                for j, i in enumerate(part):
                    hits: list[_Found] = []
                    own: list[_Found] = []
                    if bucket is not None and scores is not None:
                        own = self._pick(bucket, scores[j], queries[i], 4 * k + 8)
                        hits = self._select(own, k)
                        if len(hits) < k:
                            own = self._pick(bucket, scores[j], queries[i], len(bucket.cases))
                            hits = self._select(own, k)
                    if len(hits) < k and action not in self.isolated:
                        hits = self._widen(queries[i], vectors[i : i + 1], inverse[i : i + 1], own, k)
                    out[i] = [Hit(b.cases[s], v) for v, b, s in hits]
        return out

    def _pick(self, bucket: _Bucket, scores: FloatArray, query: Query, limit: int) -> list[_Found]:
        """Open cases of a bucket, best first, equal ones by hash: `limit` grounded ones and as many synthetic ones."""
        allowed = bucket.open_to(self._id(query.trajectory), self._id(query.task))
        grounded = bucket.grounded[: len(bucket.cases)]
        slots = _top(scores, bucket.rank, np.flatnonzero(allowed & grounded), limit)
        if self._made_up:
            made_up = _top(scores, bucket.rank, np.flatnonzero(allowed & ~grounded), limit)
            slots = _top(scores, bucket.rank, np.concatenate([slots, made_up]), 2 * limit)
        return [(float(scores[s]), bucket, int(s)) for s in slots]

    def _widen(self, query: Query, vector: FloatArray, inverse: FloatArray, own: list[_Found], k: int) -> list[_Found]:
        """Fill up from all other buckets, after everything the action's own bucket has."""
        others: list[_Found] = []
        for action, bucket in self._buckets.items():
            if action != query.action and action not in self.isolated and bucket.cases:
                others += self._pick(bucket, bucket.scores(vector, inverse)[0], query, 4 * k)
        others.sort(key=lambda hit: (-hit[0], hit[1].rank[hit[2]]))
        return self._select(own + others, k)

    def _select(self, ranked: list[_Found], k: int) -> list[_Found]:
        """The first k that are no near-duplicates; at most half are synthetic, and no more than are grounded."""
        chosen: list[_Found] = []
        synthetic = 0
        for hit in ranked:
            _, bucket, slot = hit
            made_up = not bucket.grounded[slot]
            if made_up and synthetic >= k // 2:
                continue
            if any(self._alike(bucket, slot, b, s) for _, b, s in chosen):
                continue
            chosen.append(hit)
            synthetic += made_up
            if len(chosen) == k:
                break
        while synthetic > len(chosen) - synthetic:
            last = max(i for i, (_, b, s) in enumerate(chosen) if not b.grounded[s])
            del chosen[last]
            synthetic -= 1
        return chosen

    def _alike(self, a: _Bucket, i: int, b: _Bucket, j: int) -> bool:
        if a is not b or a.cases[i].reply != a.cases[j].reply:
            return False
        cosine = float(a.vectors[:, i] @ a.vectors[:, j]) * float(a.inverse[i]) * float(a.inverse[j])
        return cosine > self.near

    def _rebuild(self) -> None:
        """Drop the dead cases' vectors."""
        old, self._buckets, self._seen, self._of, self._dead = self._buckets, {}, {}, {}, 0
        for action, bucket in old.items():
            fresh = self._buckets[action] = _Bucket(bucket.dim)
            for slot in np.flatnonzero(bucket.alive[: len(bucket.cases)]):
                case, vector = bucket.cases[slot], bucket.vectors[:, slot].copy()
                new = fresh.add(case, vector, float(bucket.inverse[slot]))
                fresh.owners[new], fresh.grounded[new] = bucket.owners[slot], bucket.grounded[slot]
                self._seen[case.action, case.reply, vector.tobytes()] = new
                for trajectory in fresh.owners[new]:
                    self._of.setdefault(trajectory, []).append((action, new))
                self._mark(fresh, new)

    def _mark(self, bucket: _Bucket, slot: int) -> None:
        owners = bucket.owners[slot]
        bucket.alive[slot] = bool(owners)
        if not owners:
            bucket.grounded[slot] = False
            bucket.marks[:, slot] = -1
            return
        (trajectory, task), *rest = owners.items()
        other = next((o for o in rest if o[1] != task), rest[0] if rest else None)
        bucket.marks[:2, slot] = self._number(trajectory), self._number(task)
        bucket.marks[2:, slot] = (-1, -1) if other is None else (self._number(other[0]), self._number(other[1]))

    def _number(self, name: str) -> int:
        return self._ids.setdefault(name, len(self._ids))

    def _id(self, name: str | None) -> int:
        """The number of a known name; -2 for none, -3 for one that owns nothing."""
        return -2 if name is None else self._ids.get(name, -3)


def _inverse_norms(vectors: FloatArray) -> FloatArray:
    norms = np.sqrt(np.einsum("nd,nd->n", vectors, vectors))
    return np.asarray(np.where(norms > 0, 1.0 / np.maximum(norms, 1e-12), 0.0), dtype=np.float32)


def _top(scores: FloatArray, rank: IntArray, slots: IntArray, k: int) -> IntArray:
    """The k of these slots with the largest scores, best first, equal ones by rank."""
    values = scores[slots]
    if len(slots) > k:
        cut = np.partition(values, len(values) - k)[len(values) - k]
        slots = slots[values >= cut]
        values = scores[slots]
    return np.asarray(slots[np.lexsort((rank[slots], -values))[:k]], dtype=np.int64)
