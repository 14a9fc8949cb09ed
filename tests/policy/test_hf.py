"""Hugging Face models as policies: one distribution on both sides, exactness, prefixes, LoRA, saving, templates."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlready.algorithms.preferences import DPO, Pair
from rlready.errors import UserError
from rlready.policy.base import Choices, LossFn, OptimizerConfig, SampleRequest, SamplingParams
from rlready.policy.hf import HFPolicy, LoraSettings, packages
from rlready.policy.hf.prefix import BLOCK
from rlready.policy.supervised import cross_entropy, descend
from rlready.types import Message, Part, Row
from tests.policy.hf_fixtures import CHATML, folder, run
from tests.policy.tiny_fixtures import row

LONG = list(range(4, 90)) * 2  # 172 ids: two whole blocks and a rest
SAMPLING = [
    SamplingParams(max_tokens=12, entropy=True),
    SamplingParams(temperature=0.7, top_k=5, max_tokens=12),
    SamplingParams(temperature=1.5, top_p=0.8, max_tokens=12),
    SamplingParams(min_p=0.1, max_tokens=12, entropy=True),
    SamplingParams(temperature=0.0, max_tokens=12),
    SamplingParams(choices=Choices([[10], [11, 12], [11, 13, 14], [20, 21]]), max_tokens=12),
    SamplingParams(choices=Choices([[10, 11], [10, 12], [30, 31]]), top_k=1, max_tokens=12),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder(tmp_path_factory.mktemp("hf") / "model")


def requests(seed: int = 0) -> list[SampleRequest]:
    prompts = [LONG[: 5 + 23 * i] for i in range(len(SAMPLING))] + [LONG, LONG, [7], LONG[:70]]
    params = [*SAMPLING, SAMPLING[0], SAMPLING[0], SAMPLING[1], SAMPLING[4]]
    return [SampleRequest(p, q, seed=100 * seed + i) for i, (p, q) in enumerate(zip(prompts, params, strict=True))]


@pytest.mark.parametrize("lora", [None, LoraSettings(rank=4)])
def test_the_learner_gives_the_log_probs_that_were_sampled_from(model: Path, lora: LoraSettings | None) -> None:
    policy = HFPolicy.load(model, lora=lora)
    assert policy.learner is not None
    if lora is not None:  # an adapter that does something
        with torch.no_grad():
            for name, p in policy.body.trainable.items():
                p.add_(0.05 * torch.randn(p.shape, generator=torch.Generator().manual_seed(len(name))))
        policy.sync()
    asked = requests()
    samples = run(policy.sampler, asked)
    rows = [row(a, s) for a, s in zip(asked, samples, strict=True)]
    for request, sample, trained, logprobs in zip(asked, samples, rows, policy.learner.logprobs(rows), strict=True):
        start = len(request.prompt_ids)
        ratio = np.exp(logprobs[start:] - trained.logprobs[start:])
        assert np.abs(ratio - 1).max() < 1e-4
        if request.params.entropy:
            assert sample.entropy is not None and len(sample.entropy) == len(sample.completion_ids)
    entropies: dict[int, np.ndarray] = {}

    def note(outputs: Any, batch: Any) -> Any:
        for i, r in enumerate(batch.rows):
            entropies[id(r)] = outputs.entropy[i].detach().numpy()
        return cross_entropy(outputs, batch)

    for r in rows:
        r.weights["nll"] = r.weights["policy"]
    policy.learner.forward_backward(rows, note, {"nll": 1.0}, entropy=True)
    for request, sample, r in zip(asked, samples, rows, strict=True):
        if sample.entropy is not None:
            got = entropies[id(r)][len(request.prompt_ids) : len(r)]
            np.testing.assert_allclose(got, sample.entropy, atol=2e-4)


def test_padding_and_company_change_nothing(model: Path) -> None:
    policy = HFPolicy.load(model)
    together = run(policy.sampler, requests())
    alone = [run(policy.sampler, [r])[0] for r in requests()]
    for a, b in zip(together, alone, strict=True):
        assert a.completion_ids == b.completion_ids and a.stop == b.stop
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-4)


def test_against_transformers_own_forward_pass(model: Path) -> None:
    """Greedy tokens and their log-probs, recomputed from the whole context at every step."""
    policy = HFPolicy.load(model)
    (sample,) = run(policy.sampler, [SampleRequest(LONG, SamplingParams(temperature=0, max_tokens=8))])
    context = list(LONG)
    for token, logprob in zip(sample.completion_ids, sample.logprobs, strict=True):
        with torch.no_grad():
            logits = policy.body.model(torch.tensor([context])).logits[0, -1]
        assert int(logits.argmax()) == token
        assert abs(float(logits.log_softmax(-1)[token]) - logprob) < 1e-4
        context.append(token)


def test_exact_samples_are_the_same_bits_whatever_else_happens(model: Path) -> None:
    policy = HFPolicy.load(model, exact=True)
    first = [run(policy.sampler, [r])[0] for r in requests()]

    async def crowd() -> list[list[Any]]:
        asked = [requests(), requests(1), list(reversed(requests()))]
        return await asyncio.gather(*(policy.sampler.sample(r) for r in asked))

    again = asyncio.run(crowd())
    fresh = HFPolicy.load(model, exact=True)  # an empty store of prefixes, other order
    other = [run(fresh.sampler, [r])[0] for r in reversed(requests())]
    for a, b, c, d in zip(first, again[0], reversed(again[2]), reversed(other), strict=True):
        assert a.completion_ids == b.completion_ids == c.completion_ids == d.completion_ids
        assert a.logprobs == b.logprobs == c.logprobs == d.logprobs  # to the last bit
    assert policy.sampler.prefixes.reused > 10 * BLOCK and policy.sampler.stats.requests == 44  # type: ignore[attr-defined]


def test_prefixes_are_bounded_and_die_with_their_weights(model: Path) -> None:
    policy = HFPolicy.load(model, exact=True)
    sampler: Any = policy.sampler
    ask = [SampleRequest(LONG, SamplingParams(max_tokens=3), seed=5)]
    before = run(sampler, ask)[0]
    assert sampler.prefixes.computed == 2 * BLOCK
    run(sampler, ask)
    assert sampler.prefixes.computed == 2 * BLOCK and sampler.prefixes.reused == 2 * BLOCK
    sampler.prefixes.limit = 1
    other = [SampleRequest([5] * 200, SamplingParams(max_tokens=1))]
    run(sampler, other)
    assert len(sampler.prefixes._blocks) == 1
    shifted = {name: t + 0.05 for name, t in policy.body.live().items()}
    sampler.load(shifted, 7)
    after = run(sampler, ask)[0]
    assert after.version == 7 and before.version == 0
    fresh = HFPolicy.load(model, exact=True)
    fresh.sampler.load(shifted, 7)
    assert run(fresh.sampler, ask)[0].logprobs == after.logprobs != before.logprobs


def sft_rows(policy: HFPolicy) -> list[Row]:
    texts = [("what is the sky ?", "blue"), ("what is it ?", "red"), ("the sky", "green")]
    r = policy.renderer
    return [Row.from_segments([(r.render([Message.user(q)]), 0.0), (r.encode_completion(a), 1.0)]) for q, a in texts]


@pytest.mark.parametrize("lora", [None, LoraSettings(rank=4)])
def test_training_learns_and_the_sampler_waits_for_sync(model: Path, lora: LoraSettings | None) -> None:
    policy = HFPolicy.load(model, lora=lora, optimizer=OptimizerConfig(lr=1e-2))
    assert policy.learner is not None
    rows = sft_rows(policy)
    ask = [
        SampleRequest(policy.renderer.render([Message.user("what is the sky ?")]),
                      SamplingParams(temperature=0, max_tokens=4, stop_ids=policy.renderer.stop_ids))
    ]  # fmt: skip
    before = run(policy.sampler, ask)[0]
    losses = [descend(policy.learner, rows)["nll"] for _ in range(60)]
    assert losses[-1] < 0.1 < losses[0]
    unsynced = run(policy.sampler, ask)[0]
    assert (unsynced.completion_ids, unsynced.logprobs, unsynced.version) == (before.completion_ids, before.logprobs, 0)
    policy.sync()
    after = run(policy.sampler, ask)[0]
    assert (
        policy.renderer.decode(after.completion_ids) == "blue" and after.stop == "end" and after.version == len(losses)
    )
    if lora is not None:  # the base did not move
        reference = HFPolicy.load(model)
        theirs = reference.body.model.state_dict()
        for name, p in policy.body.model.get_base_model().state_dict().items():
            if "lora_" not in name:
                assert torch.equal(p, theirs[name.replace(".base_layer", "")])


def kl_to_reference() -> LossFn:
    from rlready.policy.base import Loss

    def loss(outputs: Any, batch: Any) -> Loss:
        total = (batch.weights["nll"] * (outputs.logprobs - outputs.reference) ** 2).sum()
        return Loss(total, {"gap": total.detach()})

    return loss


@pytest.mark.parametrize("lora", [None, LoraSettings(rank=4)])
def test_the_reference_is_what_was_frozen(model: Path, lora: LoraSettings | None) -> None:
    policy = HFPolicy.load(model, lora=lora, optimizer=OptimizerConfig(lr=5e-3, ema=0.5))
    learner = policy.learner
    assert learner is not None
    rows = sft_rows(policy)
    with pytest.raises(UserError, match="no reference"):
        learner.logprobs(rows, which="reference")
    for _ in range(5):
        descend(learner, rows)
    learner.freeze_reference()
    frozen = learner.logprobs(rows)
    gap = learner.forward_backward(rows, kl_to_reference(), {"nll": 1.0}, reference=True)["gap"]
    assert gap == 0
    learner.step()
    for _ in range(5):
        descend(learner, rows)
    for a, b in zip(learner.logprobs(rows, which="reference"), frozen, strict=True):
        np.testing.assert_array_equal(a, b)
    ema, now = learner.logprobs(rows, which="ema"), learner.logprobs(rows)
    assert not np.allclose(ema[0], now[0]) and not np.allclose(ema[0], frozen[0])
    assert learner.forward_backward(rows, kl_to_reference(), {"nll": 1.0}, reference=True)["gap"] > 0
    with pytest.raises(UserError, match="no value head"):
        learner.values(rows)


def test_micro_batches_give_the_gradient_of_one_big_batch(model: Path) -> None:
    grads = []
    for micro in (8, 4096):
        policy = HFPolicy.load(model, micro_tokens=micro)
        assert policy.learner is not None
        metrics = policy.learner.forward_backward(sft_rows(policy), cross_entropy, {"nll": 5.0})
        grads.append({n: p.grad.clone() for n, p in policy.body.trainable.items() if p.grad is not None})
        assert metrics["nll"] > 0
    assert grads[0].keys() == grads[1].keys() and len(grads[0]) > 10
    for name, grad in grads[0].items():
        torch.testing.assert_close(grad, grads[1][name], atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("lora", [None, LoraSettings(rank=4)])
def test_a_restart_goes_back_to_the_reference(model: Path, lora: LoraSettings | None) -> None:
    policy = HFPolicy.load(model, lora=lora, optimizer=OptimizerConfig(lr=5e-3))
    learner = policy.learner
    assert learner is not None
    rows = sft_rows(policy)
    with pytest.raises(UserError, match="no reference"):
        learner.restart()
    learner.freeze_reference()

    def two_steps() -> list[np.ndarray]:
        descend(learner, rows)
        descend(learner, rows)
        return [x.copy() for x in learner.logprobs(rows)]

    first = two_steps()
    learner.restart()
    assert learner.version == 2
    for a, b in zip(learner.logprobs(rows), learner.logprobs(rows, which="reference"), strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(two_steps(), first, strict=True):  # the optimizer is fresh, too
        np.testing.assert_array_equal(a, b)


def test_pairs_are_not_cut_apart(model: Path) -> None:
    grads = []
    for micro, keeps in ((8, True), (4096, True), (8, False)):
        policy = HFPolicy.load(model, micro_tokens=micro, optimizer=OptimizerConfig(lr=0.0))
        learner = policy.learner
        assert learner is not None
        learner.freeze_reference()
        with torch.no_grad():
            for p in policy.body.trainable.values():
                p.mul_(1.02)
        learner.keeps_units = keeps
        step, seen = learner.step, {}

        def kept(policy=policy, step=step, seen=seen):  # type: ignore[no-untyped-def]
            seen.update({n: p.grad.clone() for n, p in policy.body.trainable.items() if p.grad is not None})
            return step()

        learner.step = kept  # type: ignore[method-assign]
        pairs = [Pair.of(policy.renderer, q, a, b) for q, a, b in (("sky", "blue", "red x"), ("what", "one", "sky is"))]
        DPO().fit_pairs(policy, pairs, which="reference")
        grads.append(seen)
    assert len(grads[0]) > 10
    for name, grad in grads[1].items():
        for other in (grads[0], grads[2]):
            torch.testing.assert_close(other[name], grad, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("lora", [None, LoraSettings(rank=4, dropout=0.3)])
def test_resuming_is_bit_for_bit(model: Path, tmp_path: Path, lora: LoraSettings | None) -> None:
    config = OptimizerConfig(lr=1e-3, warmup=3, schedule="cosine", total=20, ema=0.9)
    whole = HFPolicy.load(model, lora=lora, optimizer=config)
    assert whole.learner is not None
    torch.manual_seed(3)
    for _ in range(4):
        descend(whole.learner, sft_rows(whole))
    whole.learner.freeze_reference()
    torch.save(whole.learner.state_dict(), tmp_path / "state.pt")
    for _ in range(4):
        descend(whole.learner, sft_rows(whole))
    torch.manual_seed(99)
    resumed = HFPolicy.load(model, lora=lora, seed=5)
    assert resumed.learner is not None
    before = run(resumed.sampler, requests())
    resumed.learner.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=False))
    still = run(resumed.sampler, requests())  # the sampler goes on with what it had until sync
    assert [s.logprobs for s in before] == [s.logprobs for s in still]
    for _ in range(4):
        descend(resumed.learner, sft_rows(resumed))
    assert resumed.learner.version == whole.learner.version == 8
    for which in ("current", "reference", "ema"):
        ours, theirs = whole.learner.weights(which), resumed.learner.weights(which)  # type: ignore[call-arg]
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_not_finite_leaves_the_weights(model: Path) -> None:
    policy = HFPolicy.load(model)
    learner = policy.learner
    assert learner is not None
    before = policy.body.copy()

    def bad(outputs: Any, batch: Any) -> Any:
        loss = cross_entropy(outputs, batch)
        loss.total = loss.total * float("nan")
        return loss

    learner.forward_backward(sft_rows(policy), bad, {"nll": 1.0})
    with pytest.raises(FloatingPointError, match="version 0"):
        learner.step()
    assert all(torch.equal(before[n], t) for n, t in policy.body.live().items())
    with torch.no_grad():
        next(iter(policy.body.trainable.values())).fill_(float("nan"))
    with pytest.raises(FloatingPointError, match="not finite"):
        run(policy.sampler, requests()[:1])


def test_a_batch_in_flight_ends_with_the_weights_it_began_with(model: Path) -> None:
    policy = HFPolicy.load(model, optimizer=OptimizerConfig(lr=0.1))
    assert policy.learner is not None
    ask = [SampleRequest(LONG, SamplingParams(max_tokens=30), seed=1)]
    expected = run(policy.sampler, ask)[0]

    async def disturb() -> Any:
        task = asyncio.ensure_future(policy.sampler.sample(ask))
        while policy.sampler.stats.tokens < 35:  # type: ignore[attr-defined]
            await asyncio.sleep(0)
        assert policy.learner is not None
        descend(policy.learner, sft_rows(policy))
        policy.sync()
        return (await task)[0], (await policy.sampler.sample(ask))[0]

    during, after = asyncio.run(disturb())
    assert (during.completion_ids, during.logprobs, during.version) == (
        expected.completion_ids, expected.logprobs, 0)  # fmt: skip
    assert after.version == 1 and after.logprobs != expected.logprobs


def test_callers_that_leave_and_requests_that_make_no_sense(model: Path) -> None:
    policy = HFPolicy.load(model)

    async def leave() -> Any:
        gone = asyncio.ensure_future(policy.sampler.sample([SampleRequest([5], SamplingParams(max_tokens=400))]))
        stays = asyncio.ensure_future(policy.sampler.sample([SampleRequest([6], SamplingParams(max_tokens=5))]))
        await asyncio.sleep(0.01)
        gone.cancel()
        return await stays

    assert len(asyncio.run(leave())[0].completion_ids) == 5
    one = SamplingParams(max_tokens=1)
    for request, error, match in [
        (SampleRequest([], one), UserError, "empty prompt"),
        (SampleRequest([5] * 512, one), UserError, "context of 512"),
        (SampleRequest([9999], one), ValueError, "outside the vocabulary"),
        (SampleRequest([5], SamplingParams(max_tokens=0)), ValueError, "out of range"),
        (SampleRequest([5], SamplingParams(choices=Choices([[9999]]))), ValueError, "outside the vocabulary"),
    ]:
        with pytest.raises(error, match=match):
            run(policy.sampler, [request])
    cut = run(policy.sampler, [SampleRequest([5] * 509, SamplingParams(max_tokens=50))])[0]
    assert len(cut.completion_ids) == 3 and cut.stop == "length"
    assert run(policy.sampler, []) == []


# ---------------------------------------------------------------- folders


@pytest.mark.parametrize("lora", [None, LoraSettings(rank=4)])
def test_saved_folders_are_read_by_us_and_by_transformers(
    model: Path, tmp_path: Path, lora: LoraSettings | None
) -> None:
    import transformers
    from peft import PeftModel

    policy = HFPolicy.load(model, lora=lora, optimizer=OptimizerConfig(lr=1e-2))
    assert policy.learner is not None
    rows = sft_rows(policy)
    descend(policy.learner, rows)
    expected = policy.learner.logprobs(rows)
    policy.save(tmp_path / "saved")
    again = HFPolicy.load(tmp_path / "saved")
    assert again.learner is not None and again.version == 1 and again.adapted == (lora is not None)
    for a, b in zip(again.learner.logprobs(rows), expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    descend(again.learner, rows)  # it goes on learning
    theirs = transformers.AutoModelForCausalLM.from_pretrained(model if lora else tmp_path / "saved")
    if lora is not None:
        theirs = PeftModel.from_pretrained(theirs, tmp_path / "saved")
        policy.save(tmp_path / "merged", merged=True)
        merged = HFPolicy.load(tmp_path / "merged")
        assert merged.learner is not None and not merged.adapted
        for a, b in zip(merged.learner.logprobs(rows), expected, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-4)
        with pytest.raises(UserError, match="holds an adapter already"):
            HFPolicy.load(tmp_path / "saved", lora=lora)
    else:
        with pytest.raises(UserError, match="needs an adapter"):
            policy.save(tmp_path / "merged", merged=True)
    tokens = torch.from_numpy(rows[0].tokens)
    with torch.no_grad():
        logits = theirs(tokens[None]).logits[0, :-1].log_softmax(-1)
    got = logits.gather(-1, tokens[1:, None]).squeeze(-1).numpy()
    np.testing.assert_allclose(got, expected[0][1:], atol=1e-5)


def test_what_cannot_be_loaded_is_said_in_one_sentence(model: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"neither config\.json nor a GGUF file"):
        HFPolicy.load(tmp_path)
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(UserError, match="2 GGUF files; name one"):
        HFPolicy.load(tmp_path)
    with pytest.raises(UserError, match=r'dtype "float7" is none of'):
        HFPolicy.load(model, dtype="float7")
    with pytest.raises(UserError, match="No adapter fits"):
        HFPolicy.load(model, lora=LoraSettings(targets=("nonsense",)))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(UserError, match="could not be loaded as a causal language model"):
        HFPolicy.load(tmp_path / "broken")
    policy = HFPolicy.load(model)
    with pytest.raises(UserError, match="names differ"):
        policy.sampler.load({"x": torch.zeros(1)}, 1)
    odd = {n: t[:1] for n, t in policy.body.live().items()}
    with pytest.raises(UserError, match="has the shape"):
        policy.sampler.load(odd, 1)


@pytest.mark.parametrize("name", ["transformers", "peft"])
def test_a_missing_package_names_the_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match=rf'needs the package {name} .*pip install "rlready\[hf\]"'):
        getattr(packages, f"need_{name}")()


# ---------------------------------------------------------------- renderer


def renderer(tmp_path: Path, template: str | None) -> Any:
    from transformers import AutoTokenizer

    from rlready.policy.hf import HFRenderer

    tokenizer = AutoTokenizer.from_pretrained(folder(tmp_path / "m"))
    tokenizer.chat_template = template
    return HFRenderer(tokenizer, name="M")


CHAT = [Message("system", "red"), Message.user("what is it")]
NEXT = [Message("tool", "one", tool_call_id="call_1_0"), Message("tool", "two"), Message.user("three")]


def text_of(r: Any, ids: list[int]) -> str:
    text: str = r.tokenizer.decode(ids, skip_special_tokens=False)
    return text


def test_extend_appends_to_exactly_what_was_seen_and_sampled(tmp_path: Path) -> None:
    r = renderer(tmp_path, CHATML)
    seen = r.render(CHAT)
    assert text_of(r, seen) == (
        "<|im_start|>system\nred<|im_end|>\n<|im_start|>user\nwhat is it<|im_end|>\n<|im_start|>assistant\n"
    )
    end = r.end
    assert r.tokenizer.decode([end]) == "<|im_end|>" and r.stop_ids == (end, 3)
    spelled = [r.tokenizer.convert_tokens_to_ids(c) for c in "blue"]  # not how the tokenizer would write it
    assert r.encode_completion("blue") == [r.tokenizer.convert_tokens_to_ids("blue"), end] != [*spelled, end]
    rest = (
        "\n<|im_start|>tool\none<|im_end|>\n<|im_start|>tool\ntwo<|im_end|>\n<|im_start|>user\nthree<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    closed = r.extend(seen, [*spelled, end], NEXT)
    assert closed[: len(seen) + 5] == [*seen, *spelled, end]
    assert text_of(r, closed[len(seen) + 5 :]) == rest
    cut = r.extend(seen, spelled, NEXT)  # cut short: it is closed as the template closes a turn
    assert cut == closed
    assert r.extend(seen, [*spelled, end], []) == [*seen, *spelled, end, *r._encode("\n<|im_start|>assistant\n")]
    assert r.decode([*spelled, end]) == "blue" == r.decode(spelled)
    once = r.render([*CHAT, Message("assistant", "blue"), *NEXT])
    assert r.extend(seen, r.encode_completion("blue"), NEXT) == once  # the template agrees where spelling does


def test_templates_that_know_fewer_roles_are_served(tmp_path: Path) -> None:
    """As Gemma's: no system, no tool, turns must alternate."""
    strict = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('must alternate') }}{% endif %}"
        "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    r = renderer(tmp_path, strict)
    assert (r.system, r.tools, r.repeats) == (False, False, False)
    seen = r.render([*CHAT, Message.user("x")])
    assert text_of(r, seen) == "<|im_start|>user\nred\n\nwhat is it\n\nx<|im_end|><|im_start|>assistant\n"
    grown = r.extend(seen, r.encode_completion("blue"), NEXT)
    assert text_of(r, grown[len(seen) :]) == (
        "blue<|im_end|><|im_start|>user\n<tool_response>\none\n</tool_response>\n\n"
        "<tool_response>\ntwo\n</tool_response>\n\nthree<|im_end|><|im_start|>assistant\n"
    )


def test_silent_templates_are_found_out(tmp_path: Path) -> None:
    """A template that drops tool messages without a word would blind the agent."""
    deaf = CHATML.replace("{% for m in messages %}", "{% for m in messages if m.role != 'tool' %}")
    r = renderer(tmp_path, deaf)
    assert not r.tools and r.system
    assert "<tool_response>\none\n</tool_response>" in text_of(r, r.extend(r.render(CHAT), [], NEXT[:1]))


def test_templates_that_rewrite_the_past_are_refused(tmp_path: Path) -> None:
    """As Mistral's: the system prompt moves into the last user message."""
    moving = (
        "{% set ns = namespace(system='') %}{% for m in messages %}{% if m.role == 'system' %}"
        "{% set ns.system = m.content %}{% elif m.role == 'user' %}<|im_start|>"
        "{% if loop.last %}{{ ns.system }}\n{% endif %}{{ m.content }}<|im_end|>{% else %}{{ m.content }}</s>"
        "{% endif %}{% endfor %}"
    )
    r = renderer(tmp_path, moving)
    seen = r.render(CHAT)
    with pytest.raises(UserError, match="chat template of M is not append-only"):
        r.extend(seen, [5], NEXT)
    with pytest.raises(UserError, match="has no chat template"):
        renderer(tmp_path, None)
    with pytest.raises(UserError, match="leaves out user or assistant"):
        renderer(tmp_path, "{% for m in messages %}{{ m.role }}{% endfor %}")
    with pytest.raises(UserError, match="cannot write a plain conversation"):
        renderer(tmp_path, "{{ raise_exception('no') }}")


def test_thinking_templates_are_bridged(tmp_path: Path) -> None:
    """As Qwen3's and DeepSeek's: thoughts are opened by the prompt, and left out of earlier turns."""
    thinking = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{% if m.role == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}"
        "{{ m.content.split('</think>')[-1] }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
    )
    r = renderer(tmp_path, thinking)
    seen = r.render(CHAT)
    sampled = [*r._encode("red</think>blue"), r.end]
    grown = r.extend(seen, sampled, [Message.user("x")])
    assert grown[: len(seen) + len(sampled)] == seen + sampled
    assert text_of(r, grown[len(seen) + len(sampled) :]) == (
        "\n<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n<think>\n"
    )


def test_images_and_tool_calls(tmp_path: Path) -> None:
    calls = CHATML.replace(
        "{{ m.content }}",
        "{{ m.content }}{% for c in m.tool_calls or [] %}"
        "{{ c.function.name }}:{{ c.function.arguments.x }}{% endfor %}",
    )
    r = renderer(tmp_path, calls)
    from rlready.types import ToolCall

    said = Message("assistant", "", (ToolCall("green", '{"x": "blue"}', "c1"),))
    assert "assistant\ngreen:blue<|im_end|>" in text_of(r, r.render([*CHAT, said, NEXT[0]]))
    with pytest.raises(UserError, match="has an image"):
        r.render([Message("user", (Part("image", image="x.png"),))])
