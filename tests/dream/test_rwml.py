"""Logged steps as tasks for a simulator: what is asked, what is paid, what is left out, and that RL on it works."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from rlready.aio import run_sync
from rlready.algorithms import GRPO
from rlready.curriculum.samplers import Uniform
from rlready.dream.domain import Domain, call_text
from rlready.dream.library import Library
from rlready.dream.simulators.fitting import TextConfig
from rlready.dream.simulators.layout import Layout
from rlready.dream.simulators.rwml import reply_match, simulator_tasks, without_easy
from rlready.dream.simulators.text import TextModel
from rlready.dream.state import StateRules
from rlready.envs.chat import ChatEnv
from rlready.errors import UserError
from rlready.experience.episode import LoggedEpisode
from rlready.experience.logs import episode_of, system_of
from rlready.policy.base import OptimizerConfig, Policy, Sample, SampleRequest, SamplingParams
from rlready.policy.render import ChatRenderer
from rlready.policy.tiny import TinyConfig
from rlready.policy.tokenize import word_tokenizer
from rlready.rollout.actors import PolicyActor
from rlready.rollout.collect import Collector, play_many
from rlready.scoring import as_scorer
from rlready.tasks.base import TaskSet
from rlready.types import Task, Trajectory, Turn, Verdict
from rlready.worlds.fiction import play_logs
from rlready.worlds.fiction.desk import WORLD

torch.set_num_threads(1)
LOOK, PAY = call_text("get_order", {"order": "order_1"}), call_text("refund", {"order": "order_1"})
SEEN = '{"order": "order_1", "status": "shipped"}'
PAID = '{"order": "order_1", "status": "refunded"}'


def episode(task: str, *steps: tuple[str, str], errors: tuple[int, ...] = ()) -> LoggedEpisode:
    actions, replies = zip(*steps, strict=True)
    return LoggedEpisode(task, f"ticket {task}", actions, replies, True, True, errors=errors)


EPISODES = [
    *(episode(f"t{i}", (LOOK, SEEN), (LOOK, SEEN), (PAY, PAID), (LOOK, PAID), ("Done.", "")) for i in range(6)),
    episode("a", (PAY, PAID), ("Done.", "")),
    episode("a", (PAY, '{"error": "not_allowed"}'), ("Done.", ""), errors=(0,)),
]
DOMAIN = Domain.learn(EPISODES)
RULES = StateRules.learn(EPISODES, DOMAIN)
LIBRARY = Library(EPISODES, DOMAIN, RULES)
LAYOUT = Layout.tiny(DOMAIN)


def test_which_steps_become_tasks_by_hand() -> None:
    assert {"get_order"} <= RULES.reads and "refund" not in RULES.reads
    tasks = simulator_tasks(LIBRARY, DOMAIN, layout=LAYOUT)
    first = [t for t in tasks if t.prompt[0].text.startswith("ticket t0\n")]
    # Both looks come before anything was changed; the refund, the look after it and the end are left.
    assert [(t.data["answer"], t.meta["step"], t.meta["kind"]) for t in first] == [
        (PAID, 2, "refund"),
        (PAID, 3, "get_order"),
        ("<nothing> <done>", 4, "say"),
    ]
    assert [m.text for m in first[0].prompt] == [
        f"ticket t0\n[1] {LOOK}", SEEN, f"[2] {LOOK}", SEEN, f"[3] {PAY}",
    ]  # fmt: skip
    assert [m.role for m in first[0].prompt] == ["user", "assistant", "user", "assistant", "user"]
    # "a" was once paid and once refused at the same prompt: nothing that is shown decides it. What followed is told.
    assert [t.data["answer"] for t in tasks if t.prompt[0].text.startswith("ticket a")] == ["<nothing> <done>"] * 2


def test_questions_are_asked_as_dreams_ask_them_on_demand() -> None:
    tasks = simulator_tasks(LIBRARY, DOMAIN, layout=LAYOUT, questions=True)
    asked = [t for t in tasks if t.prompt[-1].text == f"ticket t0\n[1] {LOOK}"]
    assert [(len(t.prompt), t.data["answer"]) for t in asked] == [(1, SEEN)]
    assert simulator_tasks(EPISODES, DOMAIN, layout=LAYOUT, questions=True).tasks == tasks.tasks


def test_a_language_models_layout_has_its_system_message_and_demonstrations_are_refused() -> None:
    assert simulator_tasks(LIBRARY, DOMAIN)[0].prompt[0].role == "system"
    with pytest.raises(UserError, match="demos=0"):
        simulator_tasks(LIBRARY, DOMAIN, layout=replace(LAYOUT, demos=2))
    with pytest.raises(UserError, match="questions=True"):
        simulator_tasks([episode("q", (LOOK, SEEN))] * 2, DOMAIN, layout=LAYOUT)


@pytest.mark.parametrize(
    ("text", "gold", "verdict"),
    [
        (PAID, PAID, Verdict.RIGHT),
        ('{"status": "refunded", "order": "order_1"}', PAID, Verdict.RIGHT),
        (PAID.replace("order_1", "order_2"), PAID, Verdict.WRONG),
        (f"{PAID} <done>", PAID, Verdict.WRONG),
        (f"<failed> {PAID}", PAID, Verdict.WRONG),
        (
            "<failed> I am sorry, there is no such order here",
            "<failed> I am sorry, there is no such order",
            Verdict.RIGHT,
        ),
        ("<nothing> <done>", "<nothing> <done>", Verdict.RIGHT),
        ("<nothing>", "<nothing> <done>", Verdict.WRONG),
        (f"{PAID} <failed>", PAID, Verdict.NO_ANSWER),
        ("", PAID, Verdict.NO_ANSWER),
    ],
)
def test_marks_and_facts_are_exact_and_words_nearly(text: str, gold: str, verdict: Verdict) -> None:
    task = Task.of("an action", answer=gold)
    scored = as_scorer(reply_match(LAYOUT))(task, Trajectory(task, [Turn([1], [2], text=text)]))
    assert run_sync(scored).verdict is verdict


class Knows:
    """A sampler that gives each prompt its own answer, or a slip of the tongue every other time."""

    version = 0

    def __init__(self, renderer: ChatRenderer, tasks: TaskSet, hard: set[str]) -> None:
        self.renderer, self.hard = renderer, hard
        self.known = {tuple(renderer.render(t.prompt)): t for t in tasks}
        self.asked = 0

    async def sample(self, requests: Sequence[SampleRequest]) -> list[Sample]:
        out = []
        for request in requests:
            self.asked += 1
            task = self.known[tuple(request.prompt_ids)]
            slip = task.id in self.hard and request.seed % 2 == 0
            ids = self.renderer.encode_completion("<nothing>" if slip else task.data["answer"])
            out.append(Sample(ids, [-0.1] * len(ids), "end"))
        return out

    def load(self, state: object, version: int) -> None: ...

    def release(self, session: object) -> None: ...


def test_what_is_always_right_is_dropped_and_a_share_of_it_kept_on_demand() -> None:
    tasks = simulator_tasks(LIBRARY, DOMAIN, layout=LAYOUT)
    texts = [m.text for t in tasks for m in t.prompt] + [t.data["answer"] for t in tasks] + ["<nothing>"]
    renderer = ChatRenderer(word_tokenizer(texts, ("<s>", "<turn>", "<end>")), turn="<turn>", end="<end>")
    hard = {t.id for t in tasks if t.meta["kind"] == "refund"}
    sampler = Knows(renderer, tasks, hard)
    policy = Policy(sampler, renderer)
    left = run_sync(without_easy(tasks, policy, samples=12))
    assert {t.id for t in left} == hard and sampler.asked == 12 * len(tasks)
    assert left.scorer is tasks.scorer
    everything = run_sync(without_easy(tasks, policy, samples=12, keep=1.0))
    assert len(everything) == len(tasks)
    some = run_sync(without_easy(tasks, policy, samples=12, keep=0.5))
    assert hard < {t.id for t in some} < {t.id for t in tasks}
    with pytest.raises(UserError, match="nothing left to learn"):
        run_sync(without_easy(tasks, Policy(Knows(renderer, tasks, set()), renderer)))
    with pytest.raises(UserError, match="samples=0"):
        run_sync(without_easy(tasks, policy, samples=0))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_grpo_on_matches_makes_a_simulator_more_faithful_on_other_tickets(seed: int) -> None:
    """From a short supervised start, sampled at temperature 1, on tickets of neither training."""
    recordings = play_logs(WORLD, {"careful": 3.0, "random": 1.0}, 400, seed)
    rules = system_of(recordings[0])
    episodes = [episode_of(r, rules=rules)[0] for r in recordings]
    domain = Domain.learn(episodes, rules=rules, tools=recordings[0].tools)
    state = StateRules.learn(episodes, domain)
    held = set(sorted({e.task_id for e in episodes})[::5])
    train = Library([e for e in episodes if e.task_id not in held], domain, state)
    other = Library([e for e in episodes if e.task_id in held], domain, state)
    shape = TinyConfig(dim=64, layers=2, heads=4, kv_heads=1, max_len=512)
    config = TextConfig(model=shape, epochs=12, max_steps=150, batch_tokens=1500, judge_share=0.0, seed=seed)
    model = run_sync(TextModel.fit(train, domain, config=config))
    policy, params = model.policy, SamplingParams(max_tokens=40)
    assert policy.learner is not None
    tasks = simulator_tasks(train, domain, layout=model.layout)
    fresh = simulator_tasks(other, domain, layout=model.layout)

    def rate() -> float:
        asked = [t for t in fresh for _ in range(3)]
        played = run_sync(play_many(fresh, ChatEnv, PolicyActor(policy, params, 1), asked, 5, max_steps=1))
        return sum(t.success for t in played) / len(played)

    before = rate()
    hard = run_sync(without_easy(tasks, policy, samples=2, keep=0.1, max_tokens=40))
    assert len(hard) < 0.9 * len(tasks)
    policy.learner.configure(OptimizerConfig(lr=1e-3))
    collector = Collector(
        policy, ChatEnv, hard, Uniform(hard, seed), group_size=8, params=params, seed=seed, max_steps=1
    )
    for _ in range(30):
        run_sync(GRPO(minibatches=2).update(policy, collector.collect_sync(16)))
    assert rate() > before + 0.05
