"""The sampler draws from the distribution it says it draws from, whatever is in the batch or the cache."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from dataclasses import replace

import numpy as np
import pytest
import torch

from rlready.errors import UserError
from rlready.policy.base import Choices, Sample, SampleRequest, SamplingParams
from rlready.policy.tiny import TinyLearner, TinyModel, TinySampler
from rlready.policy.tiny.engine import Row
from tests.policy.tiny_fixtures import SETTINGS, TREE, VOCAB, model, prompts, row, run, sampler


def requests(params: SamplingParams, n: int = 24, **options: int) -> list[SampleRequest]:
    return [SampleRequest(p, params, seed=i) for i, p in enumerate(prompts(n, **options))]


def same(a: list[Sample], b: list[Sample]) -> None:
    assert [s.completion_ids for s in a] == [s.completion_ids for s in b]
    assert [s.stop for s in a] == [s.stop for s in b]
    for x, y in zip(a, b, strict=True):
        assert x.logprobs == pytest.approx(y.logprobs, abs=2e-5)


@pytest.mark.parametrize("kv_heads", [1, 2])
@pytest.mark.parametrize("name", SETTINGS)
def test_learner_computes_the_sampled_logprobs(name: str, kv_heads: int) -> None:
    made = model(kv_heads=kv_heads)
    asked = requests(SETTINGS[name])
    drawn = run(sampler(made), asked)
    learner = TinyLearner(made, micro_tokens=100)
    rows = [row(r, s) for r, s in zip(asked, drawn, strict=True)]
    for r, s, again in zip(asked, drawn, learner.logprobs(rows), strict=True):
        assert again[len(r.prompt_ids) :] == pytest.approx(s.logprobs, abs=1e-4)
    if name in ("top_k", "top_p", "min_p", "choices"):
        assert all(s.support is not None for s in drawn)
        assert any(len(ids) > 1 for s in drawn for ids in s.support or [] if ids is not None)


@pytest.mark.parametrize("name", ["plain", "all", "choices"])
def test_entropy_is_that_of_the_sampled_distribution(name: str) -> None:
    made = model()
    asked = requests(replace(SETTINGS[name], entropy=True), n=6)
    for request, sample in zip(asked, run(sampler(made), asked), strict=True):
        assert sample.entropy is not None
        ids = request.prompt_ids + sample.completion_ids
        with torch.no_grad():
            logits = made(torch.tensor([ids]))[0]
        for i, entropy in enumerate(sample.entropy):
            z = logits[len(request.prompt_ids) + i - 1] / request.params.temperature
            support = sample.support[i] if sample.support else None
            z = z if support is None else z[torch.from_numpy(support)]
            p = torch.softmax(z.double(), -1)
            assert entropy == pytest.approx(float(-(p * p.log()).sum()), abs=1e-4)


def test_truncation_keeps_the_ids_it_should() -> None:
    made = model()
    params = SamplingParams(temperature=0.8, top_k=6, top_p=0.9, min_p=0.1, max_tokens=1)
    for request, sample in zip(asked := requests(params), run(sampler(made), asked), strict=True):
        with torch.no_grad():
            p = torch.softmax(made(torch.tensor([request.prompt_ids]))[0, -1] / 0.8, -1).tolist()
        order = sorted(range(VOCAB), key=lambda i: -p[i])[:6]
        total = sum(p[i] for i in order)
        kept, mass = [], 0.0
        for i in order:
            if mass < 0.9:
                kept.append(i)
            mass += p[i] / total
        kept = [i for i in kept if p[i] >= 0.1 * p[order[0]]]
        assert sample.support is not None and sample.support[0] is not None
        assert sample.support[0].tolist() == sorted(kept)


def test_samples_follow_the_softmax() -> None:
    """Pearson's chi-square of 8,000 first tokens stays below its 99.99% point (fixed seeds, so it cannot flake)."""
    made = model()
    prompt = [3, 1, 4, 1, 5]
    n = 8000
    params = SamplingParams(temperature=1.4, max_tokens=1)
    drawn = run(sampler(made, max_batch=512), [SampleRequest(prompt, params, seed=i) for i in range(n)])
    with torch.no_grad():
        p = torch.softmax(made(torch.tensor([prompt]))[0, -1] / 1.4, -1).double().numpy()
    counts = np.bincount([s.completion_ids[0] for s in drawn], minlength=VOCAB)
    assert (p * n > 5).sum() > 8, "the distribution is too narrow to test anything"
    many = p * n > 5
    observed = [*counts[many], counts[~many].sum()]
    expected = [*(p[many] * n), p[~many].sum() * n]
    chi = sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True) if e > 0)
    degrees = len(expected) - 1
    assert chi < degrees + 3.72 * (2 * degrees) ** 0.5 + 10


def test_token_noise_is_independent_along_a_completion() -> None:
    """Seeds 0..n give uncorrelated uniforms at neighbouring tokens and neighbouring seeds."""
    from rlready.policy.tiny.draw import mix_seeds, uniforms

    u = np.stack([uniforms(mix_seeds(range(4000)), np.full(4000, i)).numpy() for i in range(4)])
    assert abs(u.mean() - 0.5) < 0.01 and abs(u.var() - 1 / 12) < 0.005
    for a, b in ((u[0], u[1]), (u[1], u[2]), (u[0, 1:], u[0, :-1]), (u[0, 1:], u[1, :-1])):
        assert abs(np.corrcoef(a, b)[0, 1]) < 0.05


@pytest.mark.parametrize("name", ["temperature", "all", "choices", "greedy"])
def test_batch_and_arrival_do_not_change_a_sample(name: str) -> None:
    made = model()
    asked = requests(SETTINGS[name], n=20)
    alone = [run(sampler(made), [r])[0] for r in asked]
    same(run(sampler(made), asked), alone)
    same(run(sampler(made, max_batch=3), asked), alone)
    same(run(sampler(made), asked[::-1])[::-1], alone)

    async def staggered() -> list[Sample]:
        s = sampler(made, max_batch=8)

        async def late(i: int) -> Sample:
            for _ in range(i * 3 % 17):
                await asyncio.sleep(0)
            return (await s.sample([asked[i]]))[0]

        return await asyncio.gather(*(late(i) for i in range(len(asked))))

    same(asyncio.run(staggered()), alone)


def test_different_parameters_share_a_batch() -> None:
    made = model()
    names = list(SETTINGS)
    asked = [
        SampleRequest(p, replace(SETTINGS[names[i % len(names)]], max_tokens=2 + i % 7), seed=i)
        for i, p in enumerate(prompts(30))
    ]
    same(run(sampler(made), asked), [run(sampler(made), [r])[0] for r in asked])


def test_the_engine_batches_concurrent_callers() -> None:
    s = sampler(model())
    asked = requests(SamplingParams(max_tokens=5), n=16)

    async def main() -> None:
        await asyncio.gather(*(s.sample([r]) for r in asked))

    asyncio.run(main())
    assert s.stats.steps == 5 and s.stats.tokens == 80 and s.stats.requests == 16


def episodes(s: object, made: object, *, session: bool, params: SamplingParams, n: int = 10) -> list[Sample]:
    """n episodes of 5 turns each that run at the same time; replies differ in length."""

    async def one(i: int) -> list[Sample]:
        out: list[Sample] = []
        prompt = prompts(n, 3, 9)[i // 2]  # pairs share their first prompt
        for turn in range(5):
            request = SampleRequest(prompt, params, seed=100 * i + turn, session=("e", i) if session else None)
            (sample,) = await s.sample([request])  # type: ignore[attr-defined]
            out.append(sample)
            prompt = prompt + sample.completion_ids + [(i + turn * k) % VOCAB for k in range(1 + (i + turn) % 4)]
        return out

    async def main() -> list[list[Sample]]:
        return await asyncio.gather(*(one(i) for i in range(n)))

    return [sample for samples in asyncio.run(main()) for sample in samples]


@pytest.mark.parametrize("kv_heads", [1, 4])
def test_prefix_reuse_changes_work_and_not_samples(kv_heads: int) -> None:
    made = model(kv_heads=kv_heads)
    params = SamplingParams(temperature=0.9, max_tokens=4, stop_ids=(7,))
    with_session, without = sampler(made), sampler(made)
    kept = episodes(with_session, made, session=True, params=params)
    same(kept, episodes(without, made, session=False, params=params))
    computed = with_session.stats.prefill_tokens
    # Each turn computes its reply and the last sampled token; first prompts are shared by pairs.
    first = sum(len(p) for p in prompts(10, 3, 9)[:5])
    replies = sum(1 + 1 + (i + turn) % 4 for i in range(10) for turn in range(4))
    assert computed == first + replies
    assert without.stats.prefill_tokens > 2 * computed


def test_sessions_survive_eviction_and_rewriting() -> None:
    made = model()
    params = SamplingParams(max_tokens=3)
    small = sampler(made, max_batch=4, cache_bytes=0)  # four slots for ten sessions
    kept = episodes(small, made, session=True, params=params)
    same(kept, episodes(sampler(made), made, session=False, params=params))
    assert small._engine.cache.evictions > 0
    s = sampler(made)
    a, b = [1, 2, 3, 4, 5, 6], [1, 2, 3, 9, 9]
    run(s, [SampleRequest(a, params, 1, "x")])
    before = s.stats.prefill_tokens
    rewritten = run(s, [SampleRequest(b, params, 2, "x")])
    assert s.stats.prefill_tokens - before == 2
    repeated = run(s, [SampleRequest(b, params, 2, "x")])
    same(rewritten, run(sampler(made), [SampleRequest(b, params, 2)]))
    same(repeated, rewritten)
    s.release("x")
    before = s.stats.prefill_tokens
    same(run(s, [SampleRequest(b, params, 2, "x")]), rewritten)
    assert s.stats.prefill_tokens - before == len(b)


def test_branches_of_one_session_copy_its_prefix() -> None:
    made = model()
    params = SamplingParams(max_tokens=6)
    s = sampler(made)
    start = prompts(1, 20, 20)[0]
    (first,) = run(s, [SampleRequest(start, params, 0, "root")])
    branch = start + first.completion_ids
    before = s.stats.prefill_tokens
    asked = [SampleRequest([*branch, i], params, i, "root") for i in range(6)]
    asked += [SampleRequest([*branch, 0], params, 50 + i, "root") for i in range(2)]
    drawn = run(s, asked)
    same(drawn, run(sampler(made), [replace_session(r) for r in asked]))
    assert s.stats.prefill_tokens - before < 2 * len(branch) * len(asked)


def replace_session(r: SampleRequest) -> SampleRequest:
    return SampleRequest(r.prompt_ids, r.params, r.seed)


def test_identical_prompts_are_computed_once() -> None:
    made = model()
    prompt = prompts(1, 15, 15)[0]
    s = sampler(made)
    asked = [SampleRequest(list(prompt), SamplingParams(max_tokens=5), seed=i) for i in range(8)]
    asked += requests(SamplingParams(max_tokens=5), n=3)
    drawn = run(s, asked)
    assert s.stats.prefill_tokens == 15 + sum(len(r.prompt_ids) for r in asked[8:])
    same(drawn, [run(sampler(made), [r])[0] for r in asked])
    assert len({tuple(x.completion_ids) for x in drawn[:8]}) > 1


def test_new_weights_void_the_cache_and_stamp_the_samples() -> None:
    one, two = model(1), model(2)
    params = SamplingParams(max_tokens=4)
    request = SampleRequest([1, 2, 3, 4], params, 5, "s")
    s = sampler(one, max_batch=4)
    assert run(s, [request])[0].version == 0
    s.load(two.state_dict(), 7)
    before = s.stats.prefill_tokens
    after = run(s, [request])
    assert after[0].version == 7 == s.version and s.stats.prefill_tokens - before == 4
    same(after, run(sampler(two), [request]))


def test_weights_are_a_snapshot() -> None:
    made = model()
    s = sampler(made)
    before = run(s, [SampleRequest([1, 2], SamplingParams(max_tokens=5))])
    with torch.no_grad():
        for p in made.parameters():
            p.add_(1.0)
    same(run(s, [SampleRequest([1, 2], SamplingParams(max_tokens=5))]), before)


def test_weights_that_change_in_flight_are_used_from_then_on() -> None:
    """After the change every token has the log-prob that the new weights give it in its whole context."""
    one, two = model(1), model(2)
    s = sampler(one)
    request = SampleRequest([1, 2, 3], SamplingParams(max_tokens=10), 3)

    async def main() -> Sample:
        task = asyncio.ensure_future(s.sample([request]))
        while s.stats.steps < 4:
            await asyncio.sleep(0)
        s.load(two.state_dict(), 1)
        return (await task)[0]

    sample = asyncio.run(main())
    assert sample.version == [0] * 4 + [1] * 6 and len(sample.completion_ids) == 10
    old, new = (TinyLearner(m).logprobs([row(request, sample)])[0][3:] for m in (one, two))
    assert sample.logprobs[:4] == pytest.approx(old[:4], abs=1e-4)
    assert sample.logprobs[4:] == pytest.approx(new[4:], abs=1e-4)


def test_stop_ids_length_and_choices() -> None:
    s = sampler(model())
    (free,) = run(s, [SampleRequest([1, 2], SamplingParams(max_tokens=8), 1)])
    assert free.stop == "length" and len(free.completion_ids) == 8 and free.support is None and free.entropy is None
    stop = free.completion_ids[3]
    first = free.completion_ids.index(stop)
    for ids in ((stop,), (stop, VOCAB - 1)):
        (cut,) = run(s, [SampleRequest([1, 2], SamplingParams(max_tokens=8, stop_ids=ids), 1)])
        if VOCAB - 1 not in free.completion_ids[:first]:
            assert cut.stop == "end" and cut.completion_ids == free.completion_ids[: first + 1]
    seen = set()
    for sample in run(s, [SampleRequest([2], SamplingParams(5.0, choices=TREE), seed=i) for i in range(200)]):
        assert sample.stop == "end"
        seen.add(tuple(sample.completion_ids))
        assert sample.support is not None and sample.support[0] is TREE.allowed([])
        assert all(t in ids for t, ids in zip(sample.completion_ids, sample.support, strict=True) if ids is not None)
    assert seen == {(1,), (2, 3), (2, 4, 5), (6, 7), (8,)}
    (short,) = run(s, [SampleRequest([2], SamplingParams(choices=Choices([[2, 4, 5]]), max_tokens=2))])
    assert short.stop == "length" and short.completion_ids == [2, 4] and short.logprobs == [0.0, 0.0]


def test_greedy_takes_the_likeliest_and_reports_temperature_one() -> None:
    made = model()
    (sample,) = run(sampler(made), [SampleRequest([1, 2, 3], SamplingParams(temperature=0, top_k=2, max_tokens=6), 9)])
    ids = [1, 2, 3]
    for token, logprob in zip(sample.completion_ids, sample.logprobs, strict=True):
        with torch.no_grad():
            lp = torch.log_softmax(made(torch.tensor([ids]))[0, -1], -1)
        assert token == int(lp.argmax()) and logprob == pytest.approx(float(lp.max()), abs=1e-5)
        ids.append(token)


def test_completions_never_outgrow_the_model() -> None:
    s = sampler(model())
    (sample,) = run(s, [SampleRequest([1] * 60, SamplingParams(max_tokens=50))])
    assert len(sample.completion_ids) == 4 and sample.stop == "length"
    with pytest.raises(UserError, match="max_len 64"):
        run(s, [SampleRequest([1] * 64, SamplingParams())])
    with pytest.raises(UserError, match="empty prompt"):
        run(s, [SampleRequest([], SamplingParams())])
    with pytest.raises(ValueError, match="out of range"):
        run(s, [SampleRequest([1], SamplingParams(temperature=-1.0))])
    assert run(s, []) == []


def test_a_cancelled_call_leaves_the_engine_healthy() -> None:
    made = model()
    s = sampler(made, max_batch=4)
    asked = requests(SamplingParams(max_tokens=12), n=6)
    for r in asked:
        r.session = ("s", r.seed)

    async def main() -> list[Sample]:
        doomed = asyncio.ensure_future(s.sample(asked[:3]))
        rest = asyncio.ensure_future(s.sample(asked[3:]))
        while s.stats.steps < 5:
            await asyncio.sleep(0)
        doomed.cancel()
        with pytest.raises(asyncio.CancelledError):
            await doomed
        drawn = await rest
        return drawn + await s.sample(asked[:3])

    drawn = asyncio.run(main())
    same(drawn, [run(sampler(made), [r])[0] for r in asked[3:] + asked[:3]])
    assert not s._engine.rows and not s._engine.busy


def test_cancelled_before_the_first_step_with_a_shared_prompt() -> None:
    made = model()
    s = sampler(made)
    request = SampleRequest([4, 5, 6], SamplingParams(max_tokens=4), 1)

    async def main() -> Sample:
        first = asyncio.ensure_future(s.sample([request]))
        second = asyncio.ensure_future(s.sample([request]))
        await asyncio.sleep(0)
        first.cancel()
        return (await second)[0]

    same([asyncio.run(main())], run(sampler(made), [request]))


def test_failures_reach_every_caller_and_the_engine_recovers() -> None:
    made = model()
    s = sampler(made)
    asked = requests(SamplingParams(max_tokens=12), n=4)
    broken = {k: v.clone() for k, v in made.state_dict().items()}
    broken["norm.weight"][0] = float("nan")

    async def main() -> list[object]:
        calls = [asyncio.ensure_future(s.sample([r])) for r in asked]
        while s.stats.steps < 3:
            await asyncio.sleep(0)
        s.load(broken, 1)
        return await asyncio.gather(*calls, return_exceptions=True)

    results = asyncio.run(main())
    assert len(results) == 4 and all(isinstance(r, FloatingPointError) for r in results)
    s.load(made.state_dict(), 2)
    same(run(s, asked), [run(sampler(made), [r])[0] for r in asked])
    with pytest.raises(ValueError, match="outside the vocabulary"):
        run(s, [SampleRequest([1, VOCAB], SamplingParams())])
    with pytest.raises(ValueError, match="outside the vocabulary"):
        run(s, [SampleRequest([1], SamplingParams(choices=Choices([[VOCAB]])))])
    same(run(s, asked), [run(sampler(made), [r])[0] for r in asked])


def test_a_loop_that_died_leaves_no_ghosts() -> None:
    made = model()
    s = sampler(made)
    request = SampleRequest([1, 2], SamplingParams(max_tokens=30), 1, "s")

    async def abandon() -> None:
        task = asyncio.ensure_future(s.sample([request]))
        while s.stats.steps < 2:
            await asyncio.sleep(0)
        del task

    asyncio.run(abandon())
    same(run(s, [request]), run(sampler(made), [request]))


def test_many_mask_rows_do_not_outgrow_the_table() -> None:
    s = sampler(model())
    s._engine.masks.most = 8
    asked = [
        SampleRequest([1], SamplingParams(choices=Choices([[a], [b]])), seed=a)
        for a in range(VOCAB)
        for b in range(a + 1, VOCAB)
    ]
    for begin in range(0, len(asked), 7):
        for r, x in zip(asked[begin : begin + 7], run(s, asked[begin : begin + 7]), strict=True):
            assert r.params.choices is not None and x.completion_ids[0] in r.params.choices.allowed([])  # type: ignore[operator]
    assert s._engine.masks.used <= 8 + 7


def test_stats_count_time_and_tokens() -> None:
    s = sampler(model())
    run(s, requests(SamplingParams(max_tokens=4), n=5))
    assert s.stats.tokens == 20 and 0 < s.stats.forward < s.stats.busy and 0 < s.stats.overhead < 1
    s.stats.reset()
    assert s.stats.tokens == 0 and s.stats.busy == 0


def in_flight(
    s: TinySampler, request: SampleRequest, new: TinyModel, after: int, then: list[SampleRequest]
) -> list[Sample]:
    """One request whose weights change after some steps; the others arrive right then."""

    async def main() -> list[Sample]:
        task = asyncio.ensure_future(s.sample([request]))
        begun = s.stats.steps
        while s.stats.steps < begun + after:
            await asyncio.sleep(0)
        s.load(new.state_dict(), 1)
        rest = await asyncio.gather(*(s.sample([r]) for r in then))
        return [*(await task), *(x for samples in rest for x in samples)]

    return asyncio.run(main())


def test_kept_caches_serve_what_is_in_flight_and_nobody_else() -> None:
    """In flight the old keys and values stay; branches of the session, its next turn and others start afresh."""
    one, two = model(1), model(2)
    s = sampler(one, in_flight="keep")
    params = SamplingParams(max_tokens=12)
    request = SampleRequest([1, 2, 3, 4], params, 3, "s")
    branches = [SampleRequest(p, params, 9 + i, k) for i, (p, k) in enumerate(
        [([1, 2, 3, 4], "s"), ([1, 2, 3, 4, 5], "s"), ([1, 2, 3, 4], "t"), ([1, 2, 3, 4], None)])]  # fmt: skip
    sample, *others = in_flight(s, request, two, 5, branches)
    assert sample.version == [0] * 5 + [1] * 7
    same(others, [run(sampler(two), [replace_session(r)])[0] for r in branches])
    assert all(o.version == 1 for o in others)
    old, new = (TinyLearner(m).logprobs([row(request, sample)])[0][4:] for m in (one, two))
    assert sample.logprobs[:5] == pytest.approx(old[:5], abs=1e-4)
    assert np.abs(np.asarray(sample.logprobs[5:]) - new[5:]).max() > 1e-2  # drawn over the old keys and values
    before = s.stats.prefill_tokens
    follow = SampleRequest([*request.prompt_ids, *sample.completion_ids, 7], params, 30, "s")
    (again,) = run(s, [follow])
    same([again], run(sampler(two), [replace_session(follow)]))
    assert s.stats.prefill_tokens - before == len(follow.prompt_ids)  # none of it was reused
    before = s.stats.prefill_tokens
    run(s, [SampleRequest([*follow.prompt_ids, *again.completion_ids, 7], params, 31, "s")])
    assert s.stats.prefill_tokens - before == 2  # from here on all of it is


def test_kept_caches_cost_nothing_and_recomputing_does() -> None:
    one, two = model(1), model(2)
    request = SampleRequest(prompts(1, 20, 20)[0], SamplingParams(max_tokens=12), 3)
    forward = {}
    for mode in ("keep", "recompute"):
        s = sampler(one, in_flight=mode)
        seen: list[int] = []
        decode = s._engine.decoder.forward
        s._engine.decoder.forward = lambda p, cache, seen=seen, decode=decode: (  # type: ignore[method-assign]
            seen.append(len(p.tokens)), decode(p, cache))[1]  # fmt: skip
        in_flight(s, request, two, 5, [])
        forward[mode] = sum(seen)
    assert forward == {"keep": 20 + 11, "recompute": 20 + 4 + 25 + 6}


def test_unknown_ways_with_rows_in_flight_are_refused() -> None:
    with pytest.raises(UserError, match='in_flight="restart" is unknown; choose recompute or keep'):
        sampler(model(), in_flight="restart")


@pytest.mark.parametrize("mode", ["recompute", "keep"])
@pytest.mark.parametrize("seed", range(4))
def test_whatever_happens_a_sample_of_one_version_is_that_of_a_fresh_engine(mode: str, seed: int) -> None:
    """Calls, weights and cancellations at random moments, few slots, branching sessions.

    A sample that was drawn under one version alone never sees what was computed under another one; with "recompute"
    every token has the log-prob of its version.
    """
    chance = random.Random(seed)
    models = [model(i) for i in range(3)]
    s = sampler(models[0], in_flight=mode, max_batch=5, cache_bytes=0)
    done: list[tuple[SampleRequest, Sample]] = []
    stems = prompts(3, 4, 9, seed=seed)

    async def one(i: int) -> None:
        for _ in range(chance.randrange(40)):
            await asyncio.sleep(0)
        stem = list(chance.choice(stems))
        session = chance.choice([None, 0, 1, 2])
        for turn in range(2):
            params = SamplingParams(max_tokens=chance.randrange(1, 12))
            request = SampleRequest(list(stem), params, 10 * i + turn, session)
            (sample,) = await s.sample([request])
            done.append((request, sample))
            stem += [*sample.completion_ids, chance.randrange(VOCAB)]

    async def main() -> None:
        calls = [asyncio.ensure_future(one(i)) for i in range(30)]
        version = 0
        while not all(call.done() for call in calls):
            for _ in range(chance.randrange(1, 25)):
                await asyncio.sleep(0)
            version += 1
            s.load(models[version % 3].state_dict(), version)
            if chance.random() < 0.2:
                chance.choice(calls).cancel()
            if chance.random() < 0.2:
                s.release(chance.randrange(3))
        await asyncio.gather(*calls, return_exceptions=True)

    asyncio.run(main())
    whole = [(r, x) for r, x in done if isinstance(x.version, int)]
    assert len(whole) > 5 and len(done) - len(whole) > 5
    for r, x in whole:
        same([x], run(sampler(models[x.version % 3]), [replace_session(r)]))  # type: ignore[operator]
    for r, x in done:
        versions = [x.version] * len(x.completion_ids) if isinstance(x.version, int) else x.version
        assert len(versions) == len(x.completion_ids) and versions == sorted(versions)
        given = [TinyLearner(m).logprobs([row(r, x)])[0][len(r.prompt_ids) :] for m in models]
        least = len(versions) if mode == "recompute" else versions.count(versions[0])
        for t in range(least):
            assert x.logprobs[t] == pytest.approx(float(given[versions[t] % 3][t]), abs=1e-4)


def test_weights_that_come_between_admission_and_the_first_step_void_the_prefix() -> None:
    one, two = model(1), model(2)
    s = sampler(one, in_flight="keep")
    params = SamplingParams(max_tokens=4)
    (first,) = run(s, [SampleRequest([1, 2, 3], params, 1, "s")])
    request = SampleRequest([1, 2, 3, *first.completion_ids, 5], params, 2, "s")
    rows = deque([Row(request), Row(request)])
    with torch.inference_mode():
        s._engine.admit(rows)
        s._engine.load(two.state_dict(), 1)
        finished = [row for _ in range(4) for row in s._engine.step()]
    drawn = [row.result for row in finished if row.result is not None]
    same(drawn, run(sampler(two), [replace_session(request)] * 2))
    assert [x.version for x in drawn] == [1, 1]
