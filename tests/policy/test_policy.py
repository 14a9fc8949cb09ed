"""The policy put together: create, train, sync, clone, save, load, and what other tools read."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from rlready.errors import UserError
from rlready.policy.base import Batch, Loss, OptimizerConfig, Outputs, SampleRequest, SamplingParams
from rlready.policy.render import ChatRenderer
from rlready.policy.threads import choose_threads
from rlready.policy.tiny import TinyConfig, TinyModel, TinyPolicy, clone_policy, load_policy, save_policy
from rlready.policy.tokenize import word_tokenizer
from rlready.types import Message, Row
from tests.policy.tiny_fixtures import model

RENDERER = ChatRenderer(word_tokenizer([f"w{i}" for i in range(20)]), end="<end>")
SHAPE = TinyConfig(dim=32, layers=2, heads=4, kv_heads=2, max_len=64)


def made(**options: object) -> TinyPolicy:
    return TinyPolicy.create(RENDERER, SHAPE, 1, OptimizerConfig(lr=1e-2), **options)  # type: ignore[arg-type]


def learn(policy: TinyPolicy, steps: int = 3) -> None:
    row = Row.from_segments([([0, 3, 1], 0.0), ([4, 5, 2], 1.0)])

    def nll(outputs: Outputs, batch: Batch) -> Loss:
        return Loss(-(outputs.logprobs * batch.weights["nll"]).sum())

    assert policy.learner is not None
    for _ in range(steps):
        policy.learner.forward_backward([row], nll, {"nll": 1.0})
        policy.learner.step()


def say(policy: TinyPolicy) -> list[float]:
    prompt = policy.renderer.render([Message.user("w1 w2")])
    (sample,) = asyncio.run(policy.sampler.sample([SampleRequest(prompt, SamplingParams(max_tokens=6), 1)]))
    return [*sample.completion_ids, *sample.logprobs]


def test_versions_follow_the_weights() -> None:
    policy = made()
    before = say(policy)
    assert policy.version == 0 and policy.config.vocab_size == 23
    learn(policy)
    assert policy.learner is not None and policy.learner.version == 3
    assert policy.version == 0 and say(policy) == before  # not synced: still the old weights
    policy.sync()
    assert policy.version == 3 and say(policy) != before


def test_same_seed_same_weights_and_the_global_generator_is_untouched() -> None:
    torch.manual_seed(5)
    a = torch.rand(1)
    torch.manual_seed(5)
    one, two = made(), made()
    assert torch.equal(torch.rand(1), a) and say(one) == say(two)
    other = TinyPolicy.create(RENDERER, SHAPE, 2)
    assert say(other) != say(one)


def test_clones_are_independent() -> None:
    policy = made()
    learn(policy)
    policy.sync()
    clone = clone_policy(policy, OptimizerConfig(lr=1e-3))
    assert say(clone) == say(policy) and clone.version == 0
    learn(clone)
    clone.sync()
    assert say(clone) != say(policy) and policy.version == 3


def test_saved_and_loaded_policy_is_the_same(tmp_path: Path) -> None:
    policy = made()
    learn(policy)
    policy.sync()
    assert policy.learner is not None
    folder = tmp_path / "deep" / "model"
    save_policy(policy, folder)
    save_policy(policy, folder)  # over the old one
    assert sorted(p.name for p in folder.parent.iterdir()) == ["model"]
    again = load_policy(folder, optimizer=OptimizerConfig(lr=1e-2))
    assert again.version == 3 and say(again) == say(policy)
    rows = [Row.from_segments([([0, 3, 4, 5], 1.0)])]
    assert again.learner is not None
    assert (again.learner.values(rows)[0] == policy.learner.values(rows)[0]).all()
    assert again.renderer.render([Message.user("w3")]) == policy.renderer.render([Message.user("w3")])
    assert again.renderer.stop_ids == policy.renderer.stop_ids


@pytest.mark.parametrize(
    "changes", [{}, {"kv_heads": 4, "tie": False, "value_head": False}, {"kv_heads": 2, "heads": 8}]
)
def test_transformers_gives_the_same_logits(changes: dict[str, object], tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    ours = model(**changes)
    policy = TinyPolicy.create(RENDERER, ours.config, 0)
    assert policy.learner is not None
    policy.learner.model.load_state_dict(ours.state_dict())  # type: ignore[attr-defined]
    policy.save(tmp_path / "m")
    theirs, report = AutoModelForCausalLM.from_pretrained(tmp_path / "m", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    ids = torch.randint(0, ours.config.vocab_size, (3, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        a, b = ours(ids), theirs(ids).logits
    assert a.std() > 1 and (a - b).abs().max() < 1e-5 * max(1.0, float(a.abs().max()))


def test_wrong_checkpoints_are_refused_in_a_sentence(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    made().save(folder)
    with pytest.raises(UserError, match="no rlready policy"):
        load_policy(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"another model: dim is 32, not 64, kv_heads is 2, not 1"):
        load_policy(folder, expect=TinyConfig(vocab_size=23, dim=64, layers=2, max_len=64))
    ours = json.loads((folder / "rlready.json").read_text())
    (folder / "rlready.json").write_text(json.dumps(ours | {"model": ours["model"] | {"layers": 3}}))
    with pytest.raises(UserError, match=r"another model than its rlready\.json says"):
        load_policy(folder)
    (folder / "rlready.json").write_text(json.dumps(ours | {"model": ours["model"] | {"ffn": 80}}))
    with pytest.raises(UserError, match="another shape"):
        load_policy(folder)
    (folder / "rlready.json").write_text("{\n  oops")
    with pytest.raises(UserError, match=r"rlready\.json, line 2, column 3"):
        load_policy(folder)
    (folder / "rlready.json").write_text(json.dumps(ours))
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    with pytest.raises(UserError, match="is damaged"):
        load_policy(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match="no complete checkpoint"):
        load_policy(folder)


def test_a_failed_save_keeps_the_old_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = made()
    policy.save(tmp_path / "m")
    before = say(load_policy(tmp_path / "m"))
    learn(policy)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("rlready.policy.tiny.policy.write_weights", full)
    with pytest.raises(OSError, match="No space"):
        policy.save(tmp_path / "m")
    assert [p.name for p in tmp_path.iterdir()] == ["m"] and say(load_policy(tmp_path / "m")) == before


def test_shapes_that_cannot_be_are_refused() -> None:
    with pytest.raises(UserError, match="25 ids and the tokenizer 23"):
        TinyPolicy.create(RENDERER, TinyConfig(vocab_size=25))
    for bad in ({"heads": 3}, {"kv_heads": 3}, {"layers": 0}, {"dim": 4, "heads": 4}, {"ffn": -1}):
        with pytest.raises(UserError, match="TinyConfig"):
            TinyConfig(vocab_size=9, **bad)
    with pytest.raises(UserError, match="images"):
        TinyModel(TinyConfig(vocab_size=9, dim=32)).hidden(torch.zeros(1, 2, dtype=torch.int64), media=object())
    policy = TinyPolicy.create(RENDERER, TinyConfig(dim=32, value_head=False))
    assert policy.learner is not None
    with pytest.raises(UserError, match="no value head"):
        policy.learner.values([Row.from_segments([([1, 2], 1.0)])])


def test_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    before = torch.get_num_threads()
    try:
        monkeypatch.delenv("RLREADY_THREADS", raising=False)
        monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
        slow_at_two = choose_threads(measure=lambda: time.sleep(0.02 * torch.get_num_threads()))
        assert slow_at_two.threads == 1 == torch.get_num_threads() and set(slow_at_two.seconds) == {1, 2}
        assert choose_threads(measure=lambda: time.sleep(0.04 / torch.get_num_threads())).threads == 2
        even = choose_threads(measure=lambda: time.sleep(0.03))
        assert even.threads == 1 and "measured" in str(even) and "RLREADY_THREADS" in str(even)
        monkeypatch.setenv("RLREADY_THREADS", "2")
        assert choose_threads().threads == 2 == torch.get_num_threads()
        assert choose_threads(1).reason == "argument" and torch.get_num_threads() == 1
        for bad in ("two", "0"):
            monkeypatch.setenv("RLREADY_THREADS", bad)
            with pytest.raises(UserError, match="it must be"):
                choose_threads()
        monkeypatch.delenv("RLREADY_THREADS")
        begin = time.perf_counter()
        choose_threads()
        assert time.perf_counter() - begin < 5
    finally:
        torch.set_num_threads(before)


def test_sampled_rollouts_train_at_ratio_one() -> None:
    """What the sampler drew, the learner finds at the same log-probs: ratios of 1 before the first step."""
    policy = made()
    prompt = policy.renderer.render([Message.user("w1")])
    params = SamplingParams(temperature=0.8, top_k=5, max_tokens=5, stop_ids=policy.renderer.stop_ids)
    samples = asyncio.run(policy.sampler.sample([SampleRequest(prompt, params, i) for i in range(8)]))
    from tests.policy.tiny_fixtures import row

    ratios = []

    def loss(outputs: Outputs, batch: Batch) -> Loss:
        live = batch.weights["policy"] > 0
        ratios.append((outputs.logprobs - batch.logprobs)[live].exp().detach().numpy())
        return Loss((outputs.logprobs * batch.weights["policy"]).sum())

    assert policy.learner is not None
    request = SampleRequest(prompt, params)
    policy.learner.forward_backward([row(request, s) for s in samples], loss, {"policy": 1.0})
    assert np.concatenate(ratios) == pytest.approx(1.0, abs=1e-4)
