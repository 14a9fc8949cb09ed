"""Threads compute micro-batches side by side: the same numbers, the same errors, and nothing left behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from rlready.policy.base import Batch, Loss, OptimizerConfig, Outputs
from rlready.policy.tiny import TinyLearner, TinyModel, batching
from rlready.policy.tiny.parallel import side_by_side
from rlready.types import Row
from tests.policy.tiny_fixtures import VOCAB, config, model


@pytest.fixture
def three_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(batching, "_LEAST", 16)
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(1)


def rows(n: int = 24) -> list[Row]:
    r = np.random.default_rng(0)
    return [
        Row.from_segments([(r.integers(0, VOCAB, 5).tolist(), 0.0), (r.integers(0, VOCAB, 7), 1.0)]) for _ in range(n)
    ]


def loss(outputs: Outputs, batch: Batch) -> Loss:
    total = -(outputs.logprobs * batch.weights["nll"]).sum() / batch.denominators["nll"]
    return Loss(total, {"nll": total.detach(), "rows": len(batch.rows) / 24})


def test_results_come_in_order_and_each_thread_computes_alone(three_threads: None) -> None:
    first = threading.Event()

    def work(piece: int) -> tuple[int, str, int]:
        if piece == 0:
            assert first.wait(10)  # the others run meanwhile
        if piece == 2:
            first.set()
        return piece, threading.current_thread().name, torch.get_num_threads()

    found = list(side_by_side(work, range(7)))
    assert [piece for piece, _, _ in found] == list(range(7))
    assert {threads for _, _, threads in found} == {1}
    assert 1 < len({name for _, name, _ in found}) <= 3
    assert torch.get_num_threads() == 3
    begun: list[int] = []
    new = threading.Thread(target=lambda: begun.append(torch.get_num_threads()))
    new.start()
    new.join()
    assert begun == [3]


def test_with_one_thread_everything_stays_in_it() -> None:
    assert torch.get_num_threads() == 1
    taken: list[int] = []

    def pieces() -> Iterator[int]:
        for i in range(3):
            taken.append(i)
            yield i

    def work(piece: int) -> tuple[threading.Thread, int]:
        return threading.current_thread(), len(taken)

    here = threading.current_thread()
    assert list(side_by_side(work, pieces())) == [(here, 1), (here, 2), (here, 3)]  # each is taken when its turn comes


def test_an_error_is_raised_in_its_place(three_threads: None) -> None:
    def work(piece: int) -> int:
        if piece == 1:
            raise ValueError("piece 1")
        return piece

    results = side_by_side(work, range(3))
    assert next(results) == 0
    with pytest.raises(ValueError, match="piece 1"):
        next(results)
    assert torch.get_num_threads() == 3


def trained(given: list[Row]) -> tuple[list[dict[str, float]], dict[str, torch.Tensor], list[np.ndarray]]:
    learner = TinyLearner(TinyModel(config()), OptimizerConfig(lr=1e-2))
    metrics = [learner.forward_backward(given, loss, {"nll": 168.0}) | learner.step() for _ in range(3)]
    return metrics, {k: v.clone() for k, v in learner.weights().items()}, learner.logprobs(given)


def test_what_is_learnt_does_not_depend_on_threads(three_threads: None) -> None:
    given = rows()
    assert len(batching.cut_shared(given, 4096, 3)) == 3
    metrics, weights, logprobs = trained(given)
    again = trained(given)
    assert again[0] == metrics and all(torch.equal(weights[k], again[1][k]) for k in weights)  # bit for bit
    torch.set_num_threads(1)
    alone, theirs, found = trained(given)
    for a, b in zip(metrics, alone, strict=True):
        assert a == pytest.approx(b, rel=1e-5)
    for name, tensor in weights.items():
        torch.testing.assert_close(tensor, theirs[name], atol=1e-5, rtol=1e-4)
    for one, other in zip(logprobs, found, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


def test_the_loss_is_called_by_one_thread_at_a_time(three_threads: None) -> None:
    inside, most = 0, 0

    def watched(outputs: Outputs, batch: Batch) -> Loss:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        result = loss(outputs, batch)
        threading.Event().wait(0.01)
        inside -= 1
        return result

    learner = TinyLearner(model(), micro_tokens=20)
    learner.forward_backward(rows(), watched, {"nll": 168.0})
    assert most == 1


def test_an_error_in_a_micro_batch_is_that_of_the_pass(three_threads: None) -> None:
    given = rows()
    given[5].support_of = np.zeros(12, np.int64)
    given[5].supports = (np.asarray([VOCAB - 1]),)
    learner = TinyLearner(model())
    with pytest.raises(ValueError, match="outside the support"):
        learner.forward_backward(given, loss, {"nll": 168.0})
    assert torch.get_num_threads() == 3
