"""The learner's numbers against values computed another way, and its state against itself."""

from __future__ import annotations

import importlib.util
import inspect
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlready.errors import UserError
from rlready.policy.base import Batch, Loss, OptimizerConfig, Outputs
from rlready.policy.tiny import TinyLearner, TinyModel, fused
from rlready.policy.tiny.fused import attend, finish, rms_norm
from rlready.policy.tiny.heads import Supports, token_logprobs
from rlready.policy.tiny.optimizer import learning_rate
from rlready.policy.tiny.sharing import plant
from rlready.types import Row
from tests.policy.tiny_fixtures import VOCAB, config, model


def rows(n: int = 12, seed: int = 0, share: float = 0.5) -> list[Row]:
    """Rows of different lengths with temperatures, supports, advantages and two streams."""
    r = np.random.default_rng(seed)
    out = []
    for i in range(n):
        size = int(r.integers(2, 40))
        tokens = r.integers(0, VOCAB, size)
        weight = (r.random(size) < share).astype(np.float32)
        weight[0] = 0
        weight[-1] = 1
        value = np.where(r.random(size) < 0.3, 1, 0).astype(np.float32)
        value[0] = 0
        temperature = np.where(weight > 0, r.uniform(0.5, 1.5, size), 1.0).astype(np.float32)
        supports, support_of = [], np.full(size, -1)
        for t in np.flatnonzero(weight):
            if i % 2 and r.random() < 0.6:
                support_of[t] = len(supports)
                supports.append(np.union1d(r.choice(VOCAB, 7, replace=False), tokens[t]))
        out.append(
            Row(
                tokens,
                {"policy": weight, "value": value},
                r.normal(size=size).astype(np.float32),
                r.normal(size=size).astype(np.float32),
                temperature,
                returns=r.normal(size=size).astype(np.float32),
                support_of=support_of if supports else None,
                supports=tuple(supports),
            )
        )
    return out


def loss(outputs: Outputs, batch: Batch) -> Loss:
    """Policy gradient with a clip, entropy, values and KL: touches every output."""
    ratio = (outputs.logprobs - batch.logprobs).clamp(-1, 1).exp()
    policy = -(ratio * batch.advantage * batch.weights["policy"]).sum() / batch.denominators["policy"]
    total = policy
    if outputs.entropy is not None:
        total = total - 0.1 * (outputs.entropy * batch.weights["policy"]).sum() / batch.denominators["policy"]
    if outputs.values is not None:
        assert batch.returns is not None
        error = (outputs.values - batch.returns) ** 2 * batch.weights["value"]
        total = total + error.sum() / batch.denominators["value"]
    if outputs.reference is not None:
        apart = (outputs.logprobs - outputs.reference) ** 2 * batch.weights["policy"]
        total = total + apart.sum() / batch.denominators["policy"]
    return Loss(total, {"policy": policy, "rows": len(batch.rows) / 100})


def weigh(given_rows: list[Row]) -> dict[str, float]:
    return {name: float(sum(r.weights[name].sum() for r in given_rows)) for name in ("policy", "value")}


def gradient(learner: TinyLearner) -> dict[str, torch.Tensor]:
    return {k: p.grad.clone() for k, p in learner.model.named_parameters() if p.grad is not None}


def direct(made: TinyModel, row: Row) -> torch.Tensor:
    """Log-probs of one row from full logits in double precision, [N]."""
    with torch.no_grad():
        z = made(torch.from_numpy(row.tokens)[None])[0].double()
    out = [0.0]
    for t in range(1, len(row)):
        scores = z[t - 1] / float(row.temperature[t])
        if row.support_of is not None and row.support_of[t] >= 0:
            keep = torch.full_like(scores, -torch.inf)
            ids = torch.from_numpy(row.supports[row.support_of[t]])
            keep[ids] = scores[ids]
            scores = keep
        out.append(float(torch.log_softmax(scores, -1)[row.tokens[t]]))
    return torch.tensor(out)


@pytest.mark.parametrize("tie", [True, False])
def test_logprobs_equal_those_of_single_rows(tie: bool) -> None:
    made = model(tie=tie)
    given_rows = rows()
    for micro in (1, 64, 10_000):
        got = TinyLearner(made, micro_tokens=micro).logprobs(given_rows)
        for row, found in zip(given_rows, got, strict=True):
            assert found.shape == (len(row),) and found.dtype == np.float32
            assert found == pytest.approx(direct(made, row).numpy(), abs=1e-4)


def test_greedy_rows_are_at_temperature_one() -> None:
    made = model()
    (row,) = rows(1)
    cold = replace(row, temperature=np.zeros_like(row.temperature))
    warm = replace(row, temperature=np.ones_like(row.temperature))
    learner = TinyLearner(made)
    assert (learner.logprobs([cold])[0] == learner.logprobs([warm])[0]).all()


@pytest.mark.parametrize("entropy", [False, True])
def test_chunked_logprobs_equal_direct_ones(entropy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlready.policy.tiny.heads._CHUNK_ELEMENTS", 1)
    torch.manual_seed(0)
    m, d, v = 700, 8, 11  # three chunks of 256
    hidden, output = torch.randn(m, d).double(), torch.randn(v, d).double()
    targets = torch.randint(0, v, (m,))
    temperature = torch.rand(m).double() + 0.5
    sets = [np.asarray([0, 3, 4]), np.arange(5, v)]
    index = torch.where(targets.eq(0) | targets.eq(3), 0, torch.where(targets >= 5, 1, -1))
    results = []
    for chunked in (True, False):
        h, o = hidden.clone().requires_grad_(), output.clone().requires_grad_()
        if chunked:
            lp, ent = token_logprobs(
                h, o, targets, temperature=temperature, supports=Supports(index, sets), entropy=entropy
            )
        else:
            z = h @ o.T / temperature[:, None]
            for i, ids in enumerate(sets):
                closed = torch.ones(v, dtype=torch.bool)
                closed[torch.from_numpy(ids)] = False
                z = z.masked_fill((index == i)[:, None] & closed, -1e9)
            full = torch.log_softmax(z, -1)
            lp, ent = full.gather(1, targets[:, None])[:, 0], -(full.exp() * full).sum(-1)
        weight = torch.linspace(-1, 2, m)
        total = (lp * weight).sum() + (0.3 * (ent * weight).sum() if entropy else 0)  # type: ignore[operator]
        total.backward()  # type: ignore[no-untyped-call]
        results.append((lp.detach(), ent.detach() if entropy else torch.zeros(m), h.grad, o.grad))  # type: ignore
    for a, b in zip(*results, strict=True):
        assert torch.allclose(a, b, atol=1e-9)


def test_hand_written_gradients_equal_finite_differences() -> None:
    draw = torch.Generator().manual_seed(1)

    def some(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=draw, dtype=torch.float64).requires_grad_()

    x, norm = some(7, 8), some(8)
    assert torch.autograd.gradcheck(lambda a, b: rms_norm(a, b, 1e-3), (x, norm))
    assert torch.allclose(rms_norm(x, norm, 1e-3), torch.nn.functional.rms_norm(x, (8,), norm, 1e-3))
    weights = some(8, 8), norm, some(14, 8), some(8, 7)
    assert torch.autograd.gradcheck(lambda *given: finish(*given, 1e-3), (x, some(7, 8), *weights))
    rows = np.asarray([[1, 2, 3, 4], [1, 2, 5, 0], [1, 6, 0, 0]])
    forest = plant(rows, np.asarray([0, 1, 2]), np.asarray([3, 2, 1]))
    angle = torch.rand(6, 1, 1, generator=draw, dtype=torch.float64)
    turn = torch.polar(torch.ones_like(angle), angle)
    for kv_heads in (1, 2, 4):
        given = x[:6].detach().requires_grad_(), norm, some((4 + 2 * kv_heads) * 2, 8)
        assert torch.autograd.gradcheck(lambda *each: attend(*each, turn, forest.rectangles, 4, 1e-3), given)


def test_without_torchscript_the_same_functions_run_as_they_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.jit, "script")
    spec = importlib.util.spec_from_file_location("plain_fused", fused.__file__)
    assert spec is not None and spec.loader is not None
    plain = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plain)
    assert inspect.isfunction(plain._attend_back) and not inspect.isfunction(fused._attend_back)
    forest = plant(np.asarray([[1, 2, 3], [1, 2, 4]]), np.asarray([0, 1]), np.asarray([2, 2]))
    found = []
    for module in (plain, fused):
        made = model()
        with monkeypatch.context() as patch:
            patch.setattr("rlready.policy.tiny.model.attend", module.attend)
            patch.setattr("rlready.policy.tiny.model.finish", module.finish)
            made.states(forest).square().sum().backward()  # type: ignore[no-untyped-call]
        found.append([p.grad for p in made.blocks.parameters()])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


def test_a_token_outside_its_support_is_an_error() -> None:
    made = model()
    row = Row.from_segments([([1, 2], 0.0), ([3], 1.0)])
    row.support_of, row.supports = np.asarray([-1, -1, 0]), (np.asarray([4, 5]),)
    with pytest.raises(ValueError, match="outside the support"):
        TinyLearner(made).logprobs([row])


def test_accumulating_gradients_gives_the_update_of_one_batch() -> None:
    given_rows = rows(16)
    updates = []
    for micro in (1, 90, 100_000):
        learner = TinyLearner(TinyModel(config()), OptimizerConfig(lr=1e-2, clip=0.5, eps=1e-2), micro_tokens=micro)
        learner.freeze_reference()
        with torch.no_grad():
            next(learner.model.parameters()).mul_(1.01)
        metrics = learner.forward_backward(
            given_rows, loss, weigh(given_rows), entropy=True, values=True, reference=True
        )
        grads = gradient(learner)
        report = learner.step()
        updates.append((grads, metrics, report, dict(learner.weights())))
    for grads, metrics, report, weights in updates[1:]:
        assert metrics["policy"] == pytest.approx(updates[0][1]["policy"], abs=1e-6)
        assert metrics["rows"] == pytest.approx(0.16)
        assert report["grad_norm"] == pytest.approx(updates[0][2]["grad_norm"], rel=1e-5)
        for name, grad in grads.items():
            assert torch.allclose(grad, updates[0][0][name], rtol=1e-5, atol=1e-6), name
            assert torch.allclose(weights[name], updates[0][3][name], rtol=0, atol=1e-6), name


def test_only_live_positions_are_computed_and_they_suffice() -> None:
    """The gradient equals that of a plain full computation of the same loss."""
    given_rows = rows(5)
    learner = TinyLearner(model())
    learner.forward_backward(given_rows, loss, weigh(given_rows), values=True)
    got = gradient(learner)
    made = model()
    total = torch.zeros(())
    n = weigh(given_rows)
    for row in given_rows:
        tokens = torch.from_numpy(row.tokens)[None]
        hidden = made.hidden(tokens[:, :-1])
        for t in range(1, len(row)):
            z = hidden[t - 1] @ made.output.T / float(row.temperature[t] if row.weights["policy"][t] else 1.0)
            if row.support_of is not None and row.support_of[t] >= 0:
                keep = torch.full_like(z, -torch.inf)
                ids = torch.from_numpy(row.supports[row.support_of[t]])
                keep[ids] = z[ids]
                z = keep
            if row.weights["policy"][t]:
                ratio = (torch.log_softmax(z, -1)[row.tokens[t]] - float(row.logprobs[t])).clamp(-1, 1).exp()
                total = total - ratio * float(row.advantage[t]) / n["policy"]
            if row.weights["value"][t]:
                assert row.returns is not None and made.value is not None
                total = total + (made.value(hidden[t - 1])[0] - float(row.returns[t])) ** 2 / n["value"]
    total.backward()  # type: ignore[no-untyped-call]
    for name, p in made.named_parameters():
        assert p.grad is not None
        assert torch.allclose(p.grad, got[name], atol=2e-5 * max(1.0, float(p.grad.abs().max()))), name


def test_values_are_read_before_the_token() -> None:
    """values[t] depends on tokens before t only, and changes with token t - 1."""
    learner = TinyLearner(model())
    assert learner.model.value is not None
    torch.nn.init.normal_(learner.model.value.weight, std=1.0)
    row = rows(1, seed=4)[0]
    base = learner.values([row])[0]
    assert base[0] == 0 and np.abs(base[1:]).min() > 0
    at = len(row) // 2
    changed = replace(row, tokens=np.where(np.arange(len(row)) == at, (row.tokens + 1) % VOCAB, row.tokens))
    other = learner.values([changed])[0]
    assert other[: at + 1] == pytest.approx(base[: at + 1], abs=1e-6)
    assert abs(other[at + 1] - base[at + 1]) > 1e-4


def test_a_masked_nan_does_not_poison_the_update() -> None:
    clean, dirty = rows(6), rows(6)
    for row in dirty:
        dead = (row.weights["policy"] == 0) & (row.weights["value"] == 0)
        assert dead.any()
        assert row.returns is not None
        for array in (row.logprobs, row.advantage, row.returns):
            array[dead] = np.nan
        row.temperature[dead] = np.nan
    grads = []
    for given_rows in (clean, dirty):
        learner = TinyLearner(model())
        metrics = learner.forward_backward(given_rows, loss, weigh(clean), entropy=True, values=True)
        assert np.isfinite(metrics["policy"])
        grads.append(gradient(learner))
    for name in grads[0]:
        assert torch.equal(grads[0][name], grads[1][name])


def test_a_live_nan_stops_the_step_and_leaves_the_weights() -> None:
    learner = TinyLearner(model())
    given_rows = rows(3)
    given_rows[0].advantage[:] = np.nan
    given_rows[1].advantage[:] = np.inf
    before = {k: v.clone() for k, v in learner.weights().items()}
    learner.forward_backward(given_rows, loss, weigh(given_rows))
    with pytest.raises(FloatingPointError, match="not finite"):
        learner.step()
    assert learner.version == 0 and all(torch.equal(before[k], v) for k, v in learner.weights().items())
    good = rows(3)
    learner.forward_backward(good, loss, weigh(good))
    assert np.isfinite(learner.step()["grad_norm"]) and learner.version == 1


def test_rows_without_weight_and_misplaced_weight() -> None:
    learner = TinyLearner(model())
    zero = np.zeros(4, np.float32)
    empty = Row(np.arange(4), {"policy": zero, "value": zero}, zero, zero, np.ones(4, np.float32))
    seen: list[Outputs] = []

    def note(outputs: Outputs, batch: Batch) -> Loss:
        seen.append(outputs)
        return Loss((outputs.logprobs * batch.weights["policy"]).sum())

    learner.forward_backward([empty], note, {"policy": 1.0}, entropy=True, values=True)
    assert seen[0].logprobs.shape == (1, 4) and not seen[0].logprobs.any() and learner.step()["grad_norm"] == 0
    first = replace(empty, weights={"policy": np.ones(4, np.float32)})
    with pytest.raises(ValueError, match="first token"):
        learner.forward_backward([first], note, {"policy": 1.0})
    with pytest.raises(UserError, match="max_len 64"):
        learner.logprobs([Row.from_segments([([1] * 66, 1.0)])])


def test_reference_stays_while_the_policy_moves() -> None:
    learner = TinyLearner(model(), OptimizerConfig(lr=1e-2))
    given_rows = rows(4)
    with pytest.raises(UserError, match="freeze_reference"):
        learner.logprobs(given_rows, which="reference")
    learner.freeze_reference()
    before = learner.logprobs(given_rows)
    captured: list[Outputs] = []

    def keep(outputs: Outputs, batch: Batch) -> Loss:
        captured.append(outputs)
        return loss(outputs, batch)

    for _ in range(3):
        learner.forward_backward(given_rows, keep, weigh(given_rows), reference=True)
        learner.step()
    after = learner.logprobs(given_rows, which="reference")
    assert all((a == b).all() for a, b in zip(before, after, strict=True))
    assert max(np.abs(a - b).max() for a, b in zip(before, learner.logprobs(given_rows), strict=True)) > 1e-2
    assert captured[-1].reference is not None and not captured[-1].reference.requires_grad
    assert torch.equal(captured[0].reference, captured[-1].reference)  # type: ignore[arg-type]


def test_moving_average_by_hand() -> None:
    learner = TinyLearner(model(), OptimizerConfig(lr=1e-2, ema=0.9))
    given_rows = rows(4)
    expected = {k: v.clone() for k, v in learner.weights().items()}
    for _ in range(3):
        learner.forward_backward(given_rows, loss, weigh(given_rows))
        learner.step()
        expected = {k: 0.9 * expected[k] + 0.1 * v for k, v in learner.weights().items()}
    averaged = learner.weights("ema")
    assert all(torch.allclose(averaged[k], v, atol=1e-6) for k, v in expected.items())
    a, b = learner.logprobs(given_rows, which="ema"), learner.logprobs(given_rows)
    assert any((x != y).any() for x, y in zip(a, b, strict=True))
    with pytest.raises(UserError, match="moving average"):
        TinyLearner(model()).logprobs(given_rows, which="ema")


SCHEDULE = OptimizerConfig(lr=3e-3, warmup=2, schedule="cosine", total=9, final=0.1, ema=0.8, weight_decay=0.01)


def train(learner: TinyLearner, begin: int, end: int) -> list[float]:
    norms = []
    for i in range(begin, end):
        given_rows = rows(5, seed=i)
        learner.forward_backward(given_rows, loss, weigh(given_rows), entropy=True, values=True, reference=True)
        norms.append(learner.step()["grad_norm"])
        torch.rand(3)
    return norms


def test_resumed_equals_uninterrupted_bit_for_bit(tmp_path: object) -> None:
    whole = TinyLearner(model(), SCHEDULE)
    whole.freeze_reference()
    norms = train(whole, 0, 6)
    first = TinyLearner(model(), SCHEDULE)
    first.freeze_reference()
    torch.manual_seed(3)
    begun = train(first, 0, 3)
    torch.save(first.state_dict(), f"{tmp_path}/state.pt")
    train(first, 3, 5)  # what was saved must not move on with the learner
    torch.rand(17)
    second = TinyLearner(model(seed=9), OptimizerConfig())
    second.load_state_dict(torch.load(f"{tmp_path}/state.pt", weights_only=True))
    drawn = torch.rand(2)
    assert begun + train(second, 3, 6) == norms and second.version == 6 == whole.version
    assert second.optimizer == SCHEDULE
    a, b = whole.state_dict(), second.state_dict()
    for part in ("model", "reference"):
        assert all(torch.equal(a[part][k], b[part][k]) for k in a[part])
    assert all(torch.equal(a["optimizer"]["ema"][k], b["optimizer"]["ema"][k]) for k in a["optimizer"]["ema"])
    for k, moments in a["optimizer"]["adam"].items():
        assert all(torch.equal(v, b["optimizer"]["adam"][k][n]) for n, v in moments.items())
    torch.manual_seed(3)
    torch.rand(9)
    assert torch.equal(torch.rand(2), drawn)


def test_state_of_another_model_is_refused() -> None:
    state = TinyLearner(model()).state_dict()
    with pytest.raises(UserError, match="another shape"):
        TinyLearner(model(dim=64)).load_state_dict(state)
    with pytest.raises(UserError, match="another model"):
        TinyLearner(model(layers=3)).load_state_dict(state)


def test_configure_starts_over_but_for_the_version() -> None:
    learner = TinyLearner(model(), SCHEDULE)
    learner.freeze_reference()
    train(learner, 0, 2)
    learner.configure(OptimizerConfig(lr=1e-3, warmup=4))
    given_rows = rows(2)
    learner.forward_backward(given_rows, loss, weigh(given_rows))
    assert learner.step()["lr"] == pytest.approx(2.5e-4) and learner.version == 3


def test_schedules_by_hand() -> None:
    linear = OptimizerConfig(lr=1.0, warmup=2, schedule="linear", total=6, final=0.2)
    assert [learning_rate(linear, i) for i in range(8)] == pytest.approx([0.5, 1, 1, 0.8, 0.6, 0.4, 0.2, 0.2])
    cosine = replace(linear, schedule="cosine", final=0.0)
    assert [learning_rate(cosine, i) for i in (2, 4, 6)] == pytest.approx([1, 0.5, 0])
    for bad in (replace(linear, total=2), replace(linear, schedule="step"), replace(linear, ema=1.0)):  # type: ignore
        with pytest.raises(UserError, match="OptimizerConfig"):
            TinyLearner(model(), bad)


def test_clipping_scales_the_gradient() -> None:
    """Without momentum, the first step of AdamW is g / (|g| + eps) of the clipped gradient."""
    given_rows = rows(4)
    learner = TinyLearner(model(), OptimizerConfig(clip=1e-3, eps=1.0, lr=1.0, betas=(0.0, 0.0)))
    before = {k: v.clone() for k, v in learner.weights().items()}
    learner.forward_backward(given_rows, loss, weigh(given_rows))
    grads = gradient(learner)
    norm = learner.step()["grad_norm"]
    assert (
        norm == pytest.approx(float(torch.stack([g.norm() for g in grads.values()]).norm()), rel=1e-5) and norm > 1e-3
    )
    for k, g in grads.items():
        g = g * 1e-3 / norm
        assert torch.allclose(learner.weights()[k], before[k] - g / (g.abs() + 1.0), atol=1e-6)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(2, 30), min_size=1, max_size=8), st.integers(1, 120), st.integers(0, 1000))
def test_any_cut_into_micro_batches_keeps_rows_in_order(sizes: list[int], micro: int, seed: int) -> None:
    r = np.random.default_rng(seed)
    given_rows = [Row.from_segments([(r.integers(0, VOCAB, n).tolist(), 1.0)]) for n in sizes]
    learner = TinyLearner(SHARED, micro_tokens=micro)
    for row, found in zip(given_rows, learner.logprobs(given_rows), strict=True):
        assert found == pytest.approx(learner.logprobs([row])[0], abs=1e-5)


SHARED = model()


def test_it_learns() -> None:
    """Forty steps of imitation put nearly all probability on the one continuation that was shown."""
    learner = TinyLearner(TinyModel(config(), 1), OptimizerConfig(lr=1e-2))
    shown = [Row.from_segments([([a], 0.0), ([(3 * a + 1) % VOCAB, (a + 5) % VOCAB], 1.0)]) for a in range(VOCAB)]

    def nll(outputs: Outputs, batch: Batch) -> Loss:
        return Loss(-(outputs.logprobs * batch.weights["nll"]).sum() / batch.denominators["nll"])

    for _ in range(60):
        learner.forward_backward(shown, nll, {"nll": 2.0 * VOCAB})
        learner.step()
    assert np.mean([lp[1:].mean() for lp in learner.logprobs(shown)]) > np.log(0.9)
