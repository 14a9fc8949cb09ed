"""Retrieval against a plain reference, quotas, exclusions, and its speed."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlready.experience.retrieve import Case, HashedEncoder, Query, Retriever

WORDS = ["air", "sim", "data", "roam", "apn", "vpn"]
states = st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(" ".join)
TASK_OF = {"t1": "k1", "t2": "k1", "t3": "k2", "t4": "k3"}
cases = st.builds(
    lambda state, action, reply, trajectory, source: Case(
        state, action, reply, trajectory, TASK_OF[trajectory], source
    ),
    states,
    st.sampled_from(["look", "fix"]),
    st.sampled_from(["on", "off"]),
    st.sampled_from(sorted(TASK_OF)),
    st.sampled_from(["offline", "synthetic"]),
)


def cosine(encoder: HashedEncoder, a: str, b: str) -> float:
    x, y = encoder.encode([a, b]).astype(np.float64)
    return float(x @ y / max(np.linalg.norm(x) * np.linalg.norm(y), 1e-12))


@given(st.lists(cases, max_size=25), states, st.sampled_from(["look", "fix"]), st.integers(1, 4), st.data())
@settings(max_examples=150, deadline=None)
def test_quota_exclusion_and_order(found: list[Case], state: str, action: str, k: int, data: st.DataObject) -> None:
    trajectory = data.draw(st.sampled_from([None, "t1", "t3"]))
    task = data.draw(st.sampled_from([None, "k1"]))
    retriever = Retriever(near=0.95)
    retriever.add(found)
    hits = retriever.topk(state, action, k, trajectory=trajectory, task=task)
    encoder = HashedEncoder()
    # Nothing excluded, as far as anyone can tell: some owner of an equal case is neither.
    for hit in hits:
        c = hit.case
        owners = [
            f
            for f in found
            if f.action == c.action and f.reply == c.reply and cosine(encoder, f.state, c.state) > 1 - 1e-6
        ]
        assert any(f.trajectory != trajectory and f.task != task for f in owners)
        assert hit.score == pytest.approx(cosine(encoder, state, c.state), abs=1e-5)
    made_up = sum(h.case.source == "synthetic" for h in hits)
    assert made_up <= len(hits) - made_up and len(hits) <= k
    own = [h.score for h in hits if h.case.action == action]
    assert [h.case.action == action for h in hits] == [True] * len(own) + [False] * (len(hits) - len(own))
    assert own == sorted(own, reverse=True)
    # No open grounded case of the bucket beats what was returned, near-duplicates aside.
    open_now = [
        f
        for f in found
        if f.action == action and f.source != "synthetic" and f.trajectory != trajectory and f.task != task
    ]
    if open_now:
        best = max(cosine(encoder, state, f.state) for f in open_now)
        assert hits and hits[0].score >= best - 1e-5


def test_two_grounded_and_many_closer_synthetic() -> None:
    retriever = Retriever()
    retriever.add([Case(f"a b c{i}", "look", f"s{i}", f"d{i}", f"k{i}", "synthetic") for i in range(300)])
    assert retriever.topk("a b", "look", 4) == []  # nothing real to stand on
    retriever.add([Case("z", "look", "r1", "o1", "p1"), Case("y", "look", "r2", "o2", "p2")])
    hits = retriever.topk("a b", "look", 4)
    assert [h.case.source for h in hits] == ["synthetic", "synthetic", "offline", "offline"]
    assert [h.case.source for h in retriever.topk("a b", "look", 1)] == ["offline"]


def test_short_bucket_is_filled_from_others_after_its_own() -> None:
    retriever = Retriever(isolated=("done",))
    retriever.add([
        Case("far away", "look", "own", "t1", "k1"),
        Case("a b", "fix", "exact", "t2", "k2"),
        Case("a c", "fix", "near", "t3", "k3"),
        Case("a b", "done", "(right)", "t4", "k4"),
    ])  # fmt: skip
    assert [h.case.reply for h in retriever.topk("a b", "look", 3)] == ["own", "exact", "near"]
    assert [h.case.reply for h in retriever.topk("a b", "never seen", 2)] == ["exact", "near"]
    assert [h.case.reply for h in retriever.topk("q", "done", 3)] == ["(right)"]


def test_repeats_gain_owners_and_near_duplicates_are_dropped() -> None:
    retriever = Retriever(near=0.7)
    assert retriever.add([Case("a b", "look", "on", "t1", "k1"), Case("a b", "look", "on", "t2", "k1")]) == 1
    assert len(retriever.topk("a b", "look", 2, trajectory="t1")) == 1  # t2 saw it too
    assert retriever.topk("a b", "look", 2, task="k1") == []
    assert retriever.add([Case("a b", "look", "on", "t3", "k2")]) == 0
    assert len(retriever.topk("a b", "look", 2, task="k1")) == 1
    retriever.add([Case("a b c", "look", "on", "t4", "k4"), Case("a b c", "look", "off", "t4", "k4")])
    assert [h.case.reply for h in retriever.topk("a b", "look", 3)] == ["on", "off"]
    assert retriever.coverage == {"look": 3}


def test_remove_takes_back_only_what_lost_its_last_owner() -> None:
    retriever = Retriever()
    retriever.add([Case("a", "look", "on", "t1", "k1", "synthetic"), Case("a", "look", "on", "t2", "k2", "synthetic")])
    retriever.add([Case("b", "look", "off", "t1", "k1", "synthetic"), Case("z", "look", "real", "r", "kr")])
    assert retriever.remove(["t1"]) == 1 and len(retriever) == 2
    assert retriever.remove(["t1", "t2"]) == 1 and len(retriever) == 1
    assert retriever.add([Case("a", "look", "on", "t9", "k9")]) == 1  # back again, and real now
    assert {h.case.reply for h in retriever.topk("a", "look", 2)} == {"on", "real"}


def test_synthetic_case_seen_in_reality_becomes_grounded() -> None:
    retriever = Retriever()
    retriever.add([Case("a", "look", "on", "d1", "k1", "synthetic")])
    assert retriever.topk("a", "look", 1) == []
    retriever.add([Case("a", "look", "on", "o1", "k2")])
    (hit,) = retriever.topk("a", "look", 1)
    assert hit.case.source == "offline" and hit.score == pytest.approx(1)


def test_neither_order_of_arrival_nor_batches_nor_evictions_change_answers() -> None:
    rng = random.Random(0)
    retriever = Retriever()
    ties = [
        Case("same words", "look", f"r{i}", f"t{i}", f"k{i}", rng.choice(["offline", "synthetic"])) for i in range(50)
    ]
    retriever.add(ties)
    other = Retriever()
    gone = [
        Case(f"w{i} v{i // 3} u{i % 11}", rng.choice(["look", "fix"]), "x", f"gone{i}", f"g{i}", "synthetic")
        for i in range(3000)
    ]
    other.add(gone)
    for case in reversed(ties):
        other.add([case])
    assert other.remove([c.trajectory for c in gone]) == 3000
    assert sum(len(b.cases) for b in other._buckets.values()) == 50  # the dead ones' vectors are dropped
    for action in ("look", "fix"):
        assert [(h.case, h.score) for h in other.topk("same words", action, 7)] == [
            (h.case, h.score) for h in retriever.topk("same words", action, 7)
        ]
    retriever.add([
        Case(" ".join(rng.choices(WORDS, k=5)), rng.choice(["look", "fix"]), rng.choice("abcd"), f"u{i}", f"l{i % 40}")
        for i in range(400)
    ])  # fmt: skip
    queries = [
        Query(" ".join(rng.choices(WORDS, k=5)), rng.choice(["look", "fix"]), None, f"l{i % 40}") for i in range(200)
    ]
    together = retriever.search(queries, 3)
    assert together == [retriever.topk(q.state, q.action, 3, trajectory=q.trajectory, task=q.task) for q in queries]


def test_encoder_is_the_same_everywhere() -> None:
    """Hand-set values: the hash must not depend on the process (Python's own is salted)."""
    vector = HashedEncoder(dim=8, ngrams=1).encode(["air sim air"])[0]
    assert vector.tolist() == HashedEncoder(dim=8, ngrams=1).encode(["sim air air"])[0].tolist()
    assert sorted(abs(vector[vector != 0]).tolist()) in ([1.0, 2.0], [3.0], [1.0])
    assert HashedEncoder(dim=8).encode([""]).tolist() == [[0.0] * 8]


def test_speed() -> None:
    """45 actions, 35,000 transitions: a query under 0.2 ms on one thread (CPU time, and a generous factor 2)."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    rng = random.Random(0)
    words = [f"w{i}" for i in range(200)]

    def state() -> str:
        return " ".join(rng.choices(words, k=14))

    retriever = Retriever()
    retriever.add(
        [Case(state(), f"a{rng.randrange(45)}", rng.choice(words), f"t{i // 14}", f"k{i // 28}") for i in range(35_000)]
    )
    queries = [Query(state(), f"a{rng.randrange(45)}", f"t{i}", f"k{i}") for i in range(500)]
    retriever.encoder.encode([q.state for q in queries])
    best = min(_seconds(retriever, queries) for _ in range(3))
    torch.set_num_threads(threads)
    assert best / len(queries) < 0.4e-3


def _seconds(retriever: Retriever, queries: list[Query]) -> float:
    start = time.thread_time()
    for q in queries:
        retriever.topk(q.state, q.action, 2, trajectory=q.trajectory, task=q.task)
    return time.thread_time() - start
