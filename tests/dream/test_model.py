"""A real fit on the phone world: it learns, says so honestly, dreams deterministically, and survives the disk."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest
import torch

from rlready.dream.checks import agreement, same_actions
from rlready.dream.env import DreamEnv
from rlready.dream.format import DreamFormat
from rlready.dream.memory import Notes
from rlready.dream.model import DreamConfig, ExperienceModel
from rlready.errors import UserError
from rlready.experience.episode import LoggedEpisode
from rlready.policy.tiny import TinyConfig
from rlready.seeds import rng
from rlready.types import Message, Task
from tests.dream.dream_phone import ACTIONS, form

SHAPE = TinyConfig(dim=48, layers=2, heads=2, kv_heads=1, max_len=64)
CONFIG = DreamConfig(SHAPE, epochs=8, batch_tokens=400, lr=4e-3, held_out=0.15, variations=0.3)


def random_play(n: int) -> tuple[list[LoggedEpisode], list[Notes]]:
    """Random play in the true phone, with its true problems as card and trace."""
    episodes, notes = [], []
    for i in range(n):
        r = rng("phone", i)
        card = r.choice([("air",), ("sim",), ("air", "sim")])
        left, actions, replies, traces = list(card), list[str](), list[str](), []
        while True:
            action = r.choice(["look", "fix air", "fix sim", "look", "done"] if len(actions) < 5 else ["done"])
            actions.append(action)
            if action.startswith("fix"):
                left = [w for w in left if w != action.split()[1]]
            looked = f"{'air_on' if 'air' in left else 'air_off'} {'sim_out' if 'sim' in left else 'sim_in'}"
            replies.append({"look": looked, "done": ""}.get(action, "ok"))
            traces.append(tuple(left))
            if action == "done":
                break
        episodes.append(
            LoggedEpisode(f"k{i}", "phone dead", tuple(actions), tuple(replies), not left, True, "random", 0, i)
        )
        notes.append(Notes(card, tuple(traces)))
    return episodes, notes


@pytest.fixture(scope="module")
def fitted() -> ExperienceModel:
    torch.set_num_threads(1)
    episodes, notes = random_play(500)
    f = DreamFormat.build(ACTIONS, "done", form().reply_words, episodes, notes)
    kind = {"look": "check"}
    return asyncio.run(ExperienceModel.fit(episodes, notes, f, config=CONFIG, kind_of=lambda a: kind.get(a, "fix")))


def test_it_learns_the_world(fitted: ExperienceModel) -> None:
    m = fitted.metrics
    assert m["fit/loss"] < 0.5 * m["fit/first_loss"]
    assert m["heldout/check"] > 0.9 and m["heldout/fix"] > 0.95 and m["heldout/verdict"] > 0.9
    assert m["heldout/trace"] > 0.9 and m["heldout/unparsable"] < 0.02 and m["heldout/steps"] > 100


def test_held_out_tasks_are_nowhere_in_the_memory(fitted: ExperienceModel) -> None:
    stored = {e.episode.task_id for e in fitted.memory.store}
    assert 0.75 * 500 < len(stored) < 0.95 * 500
    assert len(fitted.memory.retriever) < 80  # 2,000 steps, few distinct


def test_dreams_agree_with_reality_and_repeat_themselves(fitted: ExperienceModel) -> None:
    """Each start with every plan: the dream's verdicts against the rule (all problems mended before closing)."""
    plans = [p for n in (1, 2, 3) for p in itertools.product(["look", "fix air", "fix sim"], repeat=n)]
    dream, real, scripts = {}, {}, []
    for card in (("air",), ("sim",), ("air", "sim")):
        for p in plans:
            task = Task((Message.user("phone dead"),), {"card": list(card), "plan": list(p)})
            scripts.append((task, [*p, "done"]))
            real[task.id] = float(all(f"fix {w}" in p for w in card))

    async def play(task: Task, actions: list[str]) -> None:
        env = DreamEnv(fitted)
        await env.reset(task, 3)
        for action in actions:
            step = await env.step(action)
        dream[task.id] = step.reward
        await env.close()

    async def run() -> None:
        await asyncio.gather(*(play(t, a) for t, a in scripts))
        report = await same_actions(lambda: DreamEnv(fitted), scripts[::9], replays=4)
        assert report.passed, report.example

    asyncio.run(run())
    found = agreement(dream, real)
    assert found.tasks == 117 and found.score > 0.9 and found.correlation > 0.8


def test_worlds_are_drawn_by_seed_in_their_true_proportions(fitted: ExperienceModel) -> None:
    async def cards() -> list[tuple[str, ...]]:
        return [await fitted.draw_card("phone dead", seed) for seed in range(150)]

    drawn = asyncio.run(cards())
    shares = {card: drawn.count(card) / 150 for card in set(drawn)}
    assert set(shares) == {("air",), ("sim",), ("air", "sim")}
    assert all(0.18 < share < 0.5 for share in shares.values())


def test_variations_add_a_problem(fitted: ExperienceModel) -> None:
    said = asyncio.run(fitted.vary([("phone dead", ("air",), s) for s in range(20)]))
    good = [v for v in said if v is not None]
    assert len(good) >= 15
    assert sum(set(card) == {"air", "sim"} for _, card in good) >= 0.8 * len(good)


def test_save_and_load_dream_the_same_dream(fitted: ExperienceModel, tmp_path: Path) -> None:
    fitted.save(tmp_path / "m")
    fitted.save(tmp_path / "m")
    again = ExperienceModel.load(tmp_path / "m")
    assert again.form == fitted.form and again.config == fitted.config and again.metrics == fitted.metrics
    assert len(again.memory.store) == len(fitted.memory.store)

    async def dream(model: ExperienceModel) -> list[str]:
        env = DreamEnv(model)
        await env.reset(Task((Message.user("phone dead"),)), 11)
        for action in ("look", "fix air", "look", "fix sim", "look", "done"):
            step = await env.step(action)
        return [*(m.text for m in step.observation.messages), str(step.reward)]

    assert asyncio.run(dream(again)) == asyncio.run(dream(fitted))
    with pytest.raises(UserError, match="no experience model"):
        ExperienceModel.load(tmp_path)


def test_same_seed_same_model() -> None:
    episodes, notes = random_play(60)
    f = DreamFormat.build(ACTIONS, "done", form().reply_words, episodes, notes)
    config = DreamConfig(CONFIG.model, epochs=1, batch_tokens=600, held_out=0.2)
    seen: list[tuple[int, int]] = []
    a, b = (
        asyncio.run(
            ExperienceModel.fit(episodes, notes, f, config=config, progress=lambda s, n, m: seen.append((s, n)))
        )
        for _ in range(2)
    )
    assert a.metrics == b.metrics and seen[: len(seen) // 2] == [
        (s, len(seen) // 2) for s in range(1, len(seen) // 2 + 1)
    ]
    with pytest.raises(UserError, match="no episodes"):
        asyncio.run(ExperienceModel.fit([], [], f))
