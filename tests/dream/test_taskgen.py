"""New tasks: what is proposed, refused and remembered; and together with the curriculum's pool, cap and variance."""

from __future__ import annotations

import asyncio
import json

from rlready.curriculum.samplers import Mixed, Pool, Variance, top_by_variance
from rlready.dream.checks import replay
from rlready.dream.env import CARD, DreamEnv
from rlready.dream.memory import DreamMemory
from rlready.dream.model import ExperienceModel
from rlready.dream.taskgen import GENERATED, TaskGenerator
from rlready.policy.base import Policy, SampleRequest
from rlready.types import Group, Message, Task, Trajectory, Verdict
from tests.dream.dream_phone import ScriptedSampler, form, phone


def writer(prompt: str, request: SampleRequest) -> str:
    """Varies by adding the problem that is missing; sometimes repeats, sometimes mumbles."""
    if not prompt.startswith("<new>"):
        return phone(prompt, request)
    card = prompt.split(" <card> ")[1].removesuffix(" <go>").split()
    kind = request.seed % 4
    if kind == 0:
        return "phone <card> <so>"
    if kind == 1:
        return f"phone dead <card> {' '.join(reversed(card))} <go>"
    if kind == 2:
        return "phone dead <card> <go>"
    return f"phone dead <card> {' '.join(card + [w for w in ('air', 'sim') if w not in card])} <go>"


def model() -> ExperienceModel:
    f = form()
    return ExperienceModel(f, Policy(ScriptedSampler(f, writer), None), DreamMemory(f))  # type: ignore[arg-type]


def phone_task(*card: str, n: int = 0) -> Task:
    return Task((Message.user("phone dead"),), {CARD: list(card), "n": n})


def group(task: Task, *rewards: int, seed: int = 0) -> Group:
    return Group(
        task, [Trajectory(task, reward=r, verdict=Verdict.RIGHT if r else Verdict.WRONG, seed=seed) for r in rewards]
    )


def test_proposals_are_read_deduplicated_and_playable() -> None:
    m = model()
    generator = TaskGenerator(m, known=[("phone dead", ("air",)), ("phone dead", ("sim",))])
    made = asyncio.run(generator.propose([phone_task("air")], 40))
    assert [t.data[CARD] for t in made] == [["air", "sim"]]
    counts = generator.counts
    assert counts["proposed"] == 40 and counts["accepted"] == 1
    assert counts["unparsable"] > 5 and counts["repeated"] > 5 and sum(counts.values()) == 80
    assert made[0].meta[GENERATED] == phone_task("air").id and made[0].prompt[0].text == "phone dead"
    assert asyncio.run(generator.propose([phone_task("sim")], 40)) == []  # the same two problems, in another order
    played = asyncio.run(replay(lambda: DreamEnv(m), made[0], 0, ["fix air", "fix sim", "done"]))
    assert played.reward == 1 and played.failure is None
    assert asyncio.run(replay(lambda: DreamEnv(m), made[0], 0, ["fix air", "done"])).reward == 0


def test_a_task_without_card_is_varied_from_the_world_it_was_played_in() -> None:
    m = model()
    generator = TaskGenerator(m)
    task = Task((Message.user("phone dead"),), {"n": 5})
    generator.observe([group(task, 0, 1, seed=77)])
    asyncio.run(generator.propose([task], 1))
    sampler = m.policy.sampler
    assert isinstance(sampler, ScriptedSampler)
    world = asyncio.run(m.draw_card("phone dead", 77))
    assert m.form.decode(sampler.requests[1].prompt_ids) == f"<new> phone dead <card> {' '.join(world)} <go>"


def test_resume_continues_alike() -> None:
    a, b = TaskGenerator(model()), TaskGenerator(model())
    asyncio.run(a.propose([phone_task("air")], 7))
    b.load_state_dict(json.loads(json.dumps(a.state_dict())))
    seeds = [phone_task("sim"), phone_task("air")]
    assert asyncio.run(a.propose(seeds, 9)) == asyncio.run(b.propose(seeds, 9)) and a.metrics() == b.metrics()


def test_near_repeats_can_be_refused() -> None:
    f = form()
    words = ["air", "sim", "air sim"]
    sampler = ScriptedSampler(f, lambda p, r: f"phone dead <card> {words[r.seed % 3]} <go>")
    m = ExperienceModel(f, Policy(sampler, None), DreamMemory(f))  # type: ignore[arg-type]
    exact = asyncio.run(TaskGenerator(m).propose([phone_task("air")], 30))
    strict = asyncio.run(TaskGenerator(m, near=0.7).propose([phone_task("air")], 30))
    assert len(exact) == 3 and len(strict) == 1


def test_with_variance_pool_and_mixing_cap() -> None:
    """The loop of the paper: seeds by variance, at most a share of generated tasks, dropped when they teach nothing."""
    originals = [phone_task("air", n=1), phone_task("sim", n=2)]
    variance, pool = Variance(originals), Pool()
    mixed = Mixed(variance, pool, cap=0.5)
    generator = TaskGenerator(model())
    mixed.observe([group(originals[0], 0, 1, 1, 0), group(originals[1], 1, 1, 1, 1)])
    seeds = top_by_variance(8, variance, pool)
    assert seeds == [originals[0]]
    new = asyncio.run(generator.propose(seeds, 20))
    assert pool.add(new) == len(new) == 2  # both problems; and, "air" itself being no log of ours, that one too
    mixed.begin(8)
    batch = [mixed.next() for _ in range(8)]
    assert sum(GENERATED in t.meta for t in batch) == 4
    mixed.observe([group(new[0], 1, 1, 1, 1), group(new[1], 0, 1, 1, 1)])
    assert len(pool) == 1 and top_by_variance(8, variance, pool)[0] == originals[0]
