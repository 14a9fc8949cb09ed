"""A sampler in a process of its own draws what the one in this process draws, and ends when it should."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
import torch

from rlready.errors import UserError
from rlready.policy.base import Choices, OptimizerConfig, Sample, SampleRequest, SamplingParams
from rlready.policy.process import ProcessSampler, SamplerDied, in_process
from rlready.policy.render import ChatRenderer
from rlready.policy.tiny import TinyConfig, TinyLearner, TinyModel, TinyPolicy
from rlready.policy.tokenize import word_tokenizer
from tests.policy.tiny_fixtures import SETTINGS, TREE, VOCAB, model, prompts, row, sampler


@pytest.fixture(scope="module")
def shared() -> Iterator[ProcessSampler]:
    child = start(model())
    yield child
    child.close()
    assert not alive(child.pid)


@pytest.fixture
def child(shared: ProcessSampler) -> ProcessSampler:
    shared.load(model().state_dict(), 0)
    return shared


def start(made: TinyModel, **options: object) -> ProcessSampler:
    return ProcessSampler(made.config, made.state_dict(), **options)  # type: ignore[arg-type]


def alive(pid: int) -> bool:
    """Whether there is such a process, and not only the memory of one."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    return False


def gone_within(pid: int, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not alive(pid):
            return True
        time.sleep(0.01)
    return False


def run(s: object, asked: list[SampleRequest]) -> list[Sample]:
    return asyncio.run(asyncio.wait_for(s.sample(asked), 60))  # type: ignore[attr-defined]


def identical(a: list[Sample], b: list[Sample]) -> None:
    """To the last bit."""
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        assert (x.completion_ids, x.logprobs, x.stop, x.version, x.entropy) == (
            (y.completion_ids, y.logprobs, y.stop, y.version, y.entropy)
        )
        plain = [None if z.support is None else [None if s is None else s.tolist() for s in z.support] for z in (x, y)]
        assert plain[0] == plain[1]


def mixed(n: int) -> list[SampleRequest]:
    """Requests with every kind of parameter, some of them in sessions."""
    kinds = list(SETTINGS.values())
    return [
        SampleRequest(
            p, kinds[i % len(kinds)], seed=2**63 + i if i % 2 else -i, session=("s", i // 3) if i % 3 else None
        )
        for i, p in enumerate(prompts(n))
    ]


# -- the same samples ------------------------------------------------------------------------------------------------


def test_samples_are_those_of_the_inline_sampler_to_the_last_bit(child: ProcessSampler) -> None:
    asked = mixed(60)
    identical(run(child, asked), run(sampler(model()), asked))
    for request in asked:
        child.release(request.session)


def test_callers_of_one_moment_are_drawn_in_one_batch(child: ProcessSampler) -> None:
    async def both(s: object) -> list[Sample]:
        calls = [s.sample([r]) for r in mixed(30)]  # type: ignore[attr-defined]
        return [sample for samples in await asyncio.gather(*calls) for sample in samples]

    child.stats.reset()
    inline = sampler(model())
    identical(asyncio.run(both(child)), asyncio.run(both(inline)))
    assert child.stats.steps == inline.stats.steps and child.stats.requests == 30
    for r in mixed(30):
        child.release(r.session)


def test_sessions_find_their_prefix(child: ProcessSampler) -> None:
    def turns(s: object) -> list[Sample]:
        params, prompt, out = SamplingParams(max_tokens=4), [3, 1, 4], []
        for turn in range(4):
            (sample,) = run(s, [SampleRequest(prompt, params, turn, "episode")])
            out.append(sample)
            prompt = [*prompt, *sample.completion_ids, turn, 2]
        return out

    child.stats.reset()
    inline = sampler(model())
    identical(turns(child), turns(inline))
    time.sleep(0.1)
    assert child.stats.prefill_tokens == inline.stats.prefill_tokens < 3 + 3 * 7
    child.release("episode")
    child.stats.reset()
    run(child, [SampleRequest([3, 1, 4], SamplingParams(max_tokens=1), 0, "episode")])
    assert child.stats.prefill_tokens == 3  # forgotten
    child.release("episode")


def test_support_of_choices_is_the_arrays_of_the_choices(child: ProcessSampler) -> None:
    (sample,) = run(child, [SampleRequest([2], SamplingParams(choices=TREE), seed=4)])
    assert sample.support is not None and sample.support[0] is TREE.allowed([])


def test_choices_are_told_whole() -> None:
    for listed in ([[1], [2, 3], [2, 4, 5]], [[1], [1, 2], [3]], [[7]]):
        tree, again = Choices(listed), Choices(Choices(listed).complete())
        for prefix in ([], *listed, *(s[:-1] for s in listed)):
            a, b = tree.allowed(prefix), again.allowed(prefix)
            assert (a is None) == (b is None) and (a is None or a.tolist() == b.tolist())  # type: ignore[union-attr]


def test_more_than_the_line_holds_at_once(child: ProcessSampler) -> None:
    """Both directions are fuller than a socket's buffer: neither side waits for the other for ever."""
    params = SamplingParams(max_tokens=2, top_k=VOCAB - 1)
    asked = [SampleRequest(p * 3, params, seed=i) for i, p in enumerate(prompts(3000, 18, 20))]
    drawn = run(child, asked)
    assert len(drawn) == 3000 and drawn[2999].completion_ids == run(child, asked[-1:])[0].completion_ids


# -- weights ---------------------------------------------------------------------------------------------------------


def logprobs_by_version(request: SampleRequest, sample: Sample, models: dict[int, TinyModel]) -> None:
    """Every token's log-prob is the learner's of that token's version."""
    start = len(request.prompt_ids)
    versions = [sample.version] * len(sample.completion_ids) if isinstance(sample.version, int) else sample.version
    assert len(versions) == len(sample.completion_ids) and versions == sorted(versions)
    used = {id(models[v]): models[v] for v in versions}
    given = {key: TinyLearner(m).logprobs([row(request, sample)])[0][start:] for key, m in used.items()}
    for i, version in enumerate(versions):
        assert sample.logprobs[i] == pytest.approx(float(given[id(models[version])][i]), abs=1e-4), (i, version)


def test_weights_are_taken_in_flight_and_no_half_written_set_is_ever_read(child: ProcessSampler) -> None:
    """A thread hands over one set after another as fast as they are taken, while requests are drawn."""
    three = [model(seed) for seed in (1, 2, 3)]
    states = [m.state_dict() for m in three]
    models = {v: three[v % 3] for v in range(1, 100_000)} | {0: model()}
    end = threading.Event()

    def hand_over() -> None:
        version = 0
        while not end.is_set():
            version += 1
            child.load(states[version % 3], version)
            time.sleep(0.002)

    asked = [SampleRequest(p, SamplingParams(max_tokens=30), seed=i) for i, p in enumerate(prompts(40))]
    thread = threading.Thread(target=hand_over)
    thread.start()
    try:
        drawn = run(child, asked)
    finally:
        end.set()
        thread.join()
    assert sum(isinstance(s.version, list) for s in drawn) > 20
    for request, sample in zip(asked, drawn, strict=True):
        logprobs_by_version(request, sample, models)
    last = child.version
    identical(run(child, asked[:3]), run(sampler(models[last], version=last), asked[:3]))


def test_a_request_after_load_is_drawn_with_the_new_weights(child: ProcessSampler) -> None:
    request = SampleRequest([1, 2, 3], SamplingParams(max_tokens=5), 7, "s")
    for version in range(1, 8):
        child.load(model(version).state_dict(), version)
        identical(run(child, [request]), run(sampler(model(version), version=version), [request]))
        assert child.version == version
    child.release("s")


def test_weights_of_another_shape_are_refused_here(child: ProcessSampler) -> None:
    with pytest.raises(UserError, match="another shape"):
        child.load(model(dim=16).state_dict(), 5)
    assert child.version == 0


# -- what goes wrong -------------------------------------------------------------------------------------------------


def test_bad_requests_are_refused(child: ProcessSampler) -> None:
    assert run(child, []) == []
    with pytest.raises(UserError, match="empty prompt"):
        run(child, [SampleRequest([], SamplingParams())])
    with pytest.raises(UserError, match="max_len 64"):
        run(child, [SampleRequest([1] * 64, SamplingParams())])
    with pytest.raises(ValueError, match="outside the vocabulary"):
        run(child, [SampleRequest([1, VOCAB], SamplingParams())])
    good = [SampleRequest([1, 2], SamplingParams(max_tokens=3), 1)]
    identical(run(child, good), run(sampler(model()), good))


def test_broken_weights_reach_every_caller_and_good_ones_mend_it(child: ProcessSampler) -> None:
    broken = {k: v.clone() for k, v in model().state_dict().items()}
    broken["norm.weight"][0] = float("nan")
    asked = [SampleRequest(p, SamplingParams(max_tokens=3), seed=i) for i, p in enumerate(prompts(4))]

    async def main() -> list[object]:
        child.load(broken, 1)
        return await asyncio.gather(*(child.sample([r]) for r in asked), return_exceptions=True)

    assert all(isinstance(r, FloatingPointError) for r in asyncio.run(main()))
    child.load(model().state_dict(), 0)
    identical(run(child, asked), run(sampler(model()), asked))


def test_abandoned_requests_are_dropped_in_the_child(child: ProcessSampler) -> None:
    long = [SampleRequest([i % VOCAB], SamplingParams(max_tokens=60), i, ("s", i)) for i in range(300)]

    async def main() -> float:
        task = asyncio.ensure_future(child.sample(long))
        while child.stats.steps < 3:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await child.sample([SampleRequest([1], SamplingParams(max_tokens=1))])
        before = child.stats.tokens
        await asyncio.sleep(0.05)
        return child.stats.tokens - before

    child.stats.reset()
    assert asyncio.run(main()) == 0 and child.stats.tokens < 300 * 60
    for r in long:
        child.release(r.session)


def test_a_loop_that_died_leaves_no_ghosts(child: ProcessSampler) -> None:
    request = SampleRequest([1, 2], SamplingParams(max_tokens=60), 1)

    async def abandon() -> None:
        child.stats.reset()
        task = asyncio.ensure_future(child.sample([request] * 50))
        while child.stats.steps < 2:
            await asyncio.sleep(0)
        del task

    asyncio.run(abandon())
    identical(run(child, [request]), run(sampler(model()), [request]))


def test_idle_and_busy_time_add_up(child: ProcessSampler) -> None:
    run(child, [SampleRequest([1], SamplingParams(max_tokens=2))])
    child.stats.reset()
    began = time.perf_counter()
    run(child, [SampleRequest([1], SamplingParams(max_tokens=30))])
    time.sleep(1.2)
    stats = child.stats
    assert 0.5 < stats.idle <= time.perf_counter() - began and 0 < stats.forward < stats.busy < 0.6
    assert stats.tokens == 30


# -- the end ---------------------------------------------------------------------------------------------------------


def test_a_child_that_dies_is_noticed_at_once_and_said_in_a_sentence() -> None:
    child = start(model())
    run(child, [SampleRequest([1], SamplingParams(max_tokens=1))])
    asked = [SampleRequest([i % VOCAB], SamplingParams(max_tokens=60), i) for i in range(2000)]

    async def main() -> tuple[list[object], float]:
        calls = [asyncio.ensure_future(child.sample([r])) for r in asked]
        while child.stats.steps < 5:
            await asyncio.sleep(0.001)
        began = time.perf_counter()
        os.kill(child.pid, signal.SIGKILL)
        results = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 5)
        return results, time.perf_counter() - began

    results, seconds = asyncio.run(main())
    died = [r for r in results if isinstance(r, SamplerDied)]
    assert len(died) > 1000 and seconds < 1.0
    assert "was killed by SIGKILL, so nothing can be drawn any more" in str(died[0]) and "\n" not in str(died[0])
    for again in (lambda: run(child, asked[:1]), lambda: child.load(model().state_dict(), 1)):
        with pytest.raises(SamplerDied, match="was killed by SIGKILL"):
            again()
    child.release("nobody")  # an episode that ends must not hide what ended it
    child.close()
    child.close()
    assert not alive(child.pid)


def test_closing_ends_the_child_and_whoever_waits() -> None:
    child = start(model())  # closed while it boots

    async def main() -> object:
        task = asyncio.ensure_future(child.sample([SampleRequest([1], SamplingParams(max_tokens=60))]))
        await asyncio.sleep(0.05)
        child.close()
        return (await asyncio.gather(task, return_exceptions=True))[0]

    result = asyncio.run(main())
    assert isinstance(result, SamplerDied) and "closed" in str(result) and not alive(child.pid)


PARENT = """
import os, sys, time
sys.path.insert(0, {root!r})
from tests.policy.tiny_fixtures import model
from rlready.policy.process import ProcessSampler
made = model()
child = ProcessSampler(made.config, made.state_dict())
if os.fork() == 0:  # a forked process that lives on, and holds a copy of the parent's end of the line
    time.sleep(30)
    os._exit(0)
print(child.pid, flush=True)
os.kill(os.getpid(), 9)
"""


def test_the_child_ends_with_its_parent_also_by_sigkill() -> None:
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT.format(root=root)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert parent.wait(20) == -9
        assert gone_within(pid, 90)  # it may still be booting, on a busy machine for long
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(parent.pid, signal.SIGKILL)


# -- a policy in a process -------------------------------------------------------------------------------------------


def tiny_policy() -> TinyPolicy:
    renderer = ChatRenderer(word_tokenizer(["a b c d"], specials=("<s>", ">", "<end>")), end="<end>")
    return TinyPolicy.create(renderer, TinyConfig(dim=16, layers=1, heads=2, max_len=32), 3, OptimizerConfig(lr=0.1))


def test_a_policy_samples_in_a_process_while_a_block_runs() -> None:
    policy = tiny_policy()
    request = SampleRequest([1, 2, 3], SamplingParams(max_tokens=6, stop_ids=(2,)), 5)
    with in_process(policy) as acting:
        sampled = acting.sampler
        assert isinstance(sampled, ProcessSampler) and sampled.elsewhere
        assert acting.learner is policy.learner and acting.config == policy.config and type(acting) is TinyPolicy
        identical(run(sampled, [request]), run(policy.sampler, [request]))
        with torch.no_grad():
            for p in policy.learner.model.parameters():  # type: ignore[union-attr]
                p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
        acting.sync()
        after = run(sampled, [request])
        with pytest.raises(UserError, match="samples in this process"), in_process(acting):
            pass
    assert not alive(sampled.pid)
    identical(run(policy.sampler, [request]), after)  # its own sampler has what was learned


def test_an_error_in_the_block_ends_the_child_too() -> None:
    with pytest.raises(KeyError), in_process(tiny_policy()) as acting:
        raise KeyError("no")
    assert not alive(acting.sampler.pid)  # type: ignore[attr-defined]


def test_settings_that_make_no_sense() -> None:
    made = model()
    with pytest.raises(UserError, match="in_flight"):
        start(made, in_flight="restart")
    with pytest.raises(UserError, match="threads"):
        start(made, threads=0)
    with pytest.raises(UserError, match="another shape"):
        ProcessSampler(made.config, model(dim=16).state_dict())
