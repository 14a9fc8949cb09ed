"""The whole path: gate, cloning, checks, RL in the dream, a paired result; its budget, its halts, its honesty."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rlready.aio import run_sync
from rlready.algorithms.presets import GRPO
from rlready.dream.base import Reply
from rlready.dream.gym import Gym
from rlready.dream.library import Library
from rlready.dreaming import rounds
from rlready.dreaming import train as training
from rlready.dreaming.agent import policy_of
from rlready.dreaming.budget import RealBudget
from rlready.dreaming.clone import rows_of, trajectory_of
from rlready.dreaming.outcome import NOT_CHECKED
from rlready.dreaming.rounds import RealSide, episode_from
from rlready.dreaming.train import GATE, DreamTrainConfig, check_gate
from rlready.errors import EnvError, UserError
from rlready.rollout.episode import play
from rlready.run import Run
from rlready.types import Turn, Verdict
from rlready.worlds.fiction.desk import WORLD, Desk, test_tasks
from tests.dreaming.desk_gym import QUICK, Counted, header, make_gym, side, train
from tests.same_run import lines_of


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    return make_gym(tmp_path_factory.mktemp("desk"))


@pytest.fixture
def gym(folder) -> Gym:
    torch.set_num_threads(1)
    return Gym.load(folder)


@pytest.fixture(autouse=True)
def counted(monkeypatch):
    """The gate plays few scripts here; what it checks is tested with it."""
    Counted.steps, Counted.tasks = 0, []
    monkeypatch.setattr(training, "check_gate", functools.partial(check_gate, scripts=4))


# ---------------------------------------------------------------------- the whole path


def test_the_whole_path(gym, tmp_path):
    """Gate, clone, check, RL with a real round, check: all is there, and every real step is counted once."""
    real = side(gym, Counted)
    out, run = train(gym, tmp_path, real=real, budget=4000)
    assert out.gate.passed and out.forced == [] and out.skipped is None
    assert out.clone is not None and out.trained is not None and out.difference is not None
    d = out.difference
    assert d.tasks == 6 == d.wins + d.losses + d.ties and d.only_one == 0
    assert d.difference == pytest.approx(out.trained.success - out.clone.success)
    assert out.sampled is not None and out.sampled.difference is not None
    assert out.last_line == (
        f"Result, real and paired, dream RL against filtered cloning: greedy {d}; sampled at temperature 1 "
        f"{out.sampled.difference}."
    )
    assert set(out.dream) == {"clone", "trained"}
    lines = lines_of(run.dir, "metrics.jsonl")
    rl = [line for line in lines if line["stage"] == "dream RL"]
    assert [line["step"] for line in rl] == [0, 1, 2, 3]
    assert [line["step"] for line in rl if "real/episodes" in line] == [2] and rl[2]["repair/episodes"] == 4
    assert all("eval/dream" in rl[i] and "eval/agreement/real" in rl[i] for i in (0, 2, 3))
    spent = header(run)["spent"]
    assert spent["real"] == Counted.steps == spent["gate"] + spent["check"] + spent["mixing"]
    assert f"{Counted.steps} of 4000 real transitions" in out.budget
    assert rl[0]["real"] < rl[3]["real"] < spent["real"]
    names = sorted(p.name for p in (run.dir / "stages").iterdir())
    checks = [f"check-{who}{how}" for who in ("clone", "trained") for how in ("", "-sampled")]
    assert names == [*checks, "clone", "dream-RL", "dream-clone", "dream-trained", "gate"]
    held = {t.id for t in real.held_out}
    assert Counter(t for t in Counted.tasks if t in held) == dict.fromkeys(held, 4)  # never practised on
    assert (run.dir / "model").is_dir()


def test_without_a_real_environment_nothing_is_claimed(gym, tmp_path):
    out, run = train(gym, tmp_path, steps=1, check_every=0)
    assert out.clone is None and out.trained is None and out.difference is None
    assert out.last_line == f"Result: {NOT_CHECKED}."
    assert out.budget.startswith("0 real transitions") and header(run)["spent"].get("real", 0) == 0


def test_enough_stops_before_rl_and_says_so(gym, tmp_path):
    out, run = train(gym, tmp_path, real=side(gym), enough=0.0)
    assert out.skipped and "Filtered cloning alone succeeds in" in out.skipped and "no dream is needed" in out.skipped
    assert out.difference is None and out.clone is not None
    assert out.last_line == f"Result, real: filtered cloning {out.clone}. There was no RL to compare with."
    assert not (run.dir / "stages" / "dream-RL").exists()
    out, _ = train(gym, tmp_path, steps=0)
    assert out.skipped == "steps=0: no RL was asked for."


# ---------------------------------------------------------------------- the gate


def noisy(folder: Path) -> Gym:
    """A gym that answers otherwise each time."""
    gym, count = Gym.load(folder), iter(range(10**9))

    class Moody:
        name = "moody"

        async def reply(self, moment, action):
            return Reply(f"mood {next(count)}")

        async def judge(self, moment):
            return 0.5

        def release(self, world):
            pass

    class Forgets:
        def reply(self, moment, action):
            return None

    gym.simulator = Moody()
    gym.layers = (Forgets(),)
    return gym


def test_a_closed_gate_says_what_failed_and_how_to_mend_it(folder, tmp_path):
    with pytest.raises(UserError) as told:
        train(noisy(folder), tmp_path)
    for words in ("not fit to train in", "FAILED determinism", "mend: Make every reply a function", "--force"):
        assert words in str(told.value)
    kept = json.loads((tmp_path / "t-1" / "run.json").read_text())
    assert kept["gate"]["determinism"] is False and kept["state"] == "failed"
    assert not (tmp_path / "t-1" / "stages" / "clone").exists()


def test_force_is_recorded(folder, tmp_path):
    out, run = train(noisy(folder), tmp_path, force=True, steps=1, check_every=0)
    assert "determinism" in out.forced and header(run)["forced"] == out.forced
    assert header(run)["gate"]["determinism"] is False and header(run)["state"] == "done"
    again = json.loads((run.dir / "stages" / "gate" / "gate.json").read_text())
    assert again["passed"] is False


def test_the_gate_costs_what_is_set_aside_for_it(gym):
    report, spent = check_gate(gym, side(gym, Counted))
    assert report.passed and 0 < spent == Counted.steps <= GATE


def test_a_real_environment_of_another_form_closes_the_gate(gym, tmp_path):
    class Other(Desk):
        async def reset(self, task, seed):
            seen = await super().reset(task, seed)
            return replace(seen, actions=None)

    with pytest.raises(UserError, match="only the dream limits decoding"):
        train(gym, tmp_path, real=side(gym, Other))


# ---------------------------------------------------------------------- the budget


def test_a_budget_that_is_too_small_stops_before_anything_is_spent(gym, tmp_path):
    real = side(gym, Counted)
    need = GATE + 4 * real.cost(6, gym)
    for budget in (0, 1, need - 1):
        with pytest.raises(UserError, match=f"--real-budget {need}") as told:
            train(gym, tmp_path, real=real, budget=budget)
        assert Counted.steps == 0 and "\n" not in str(told.value)
    out, _ = train(gym, tmp_path, real=real, budget=need, steps=1)
    assert out.difference is not None


class Long(Counted):
    """An agent never comes to an end here: far more steps than the recorded episodes have."""

    async def step(self, action):
        step = await super().step(action)
        step.terminated = step.truncated = False
        self._open = True
        return step


@pytest.mark.parametrize("budget", [116, 160, 240])
def test_only_the_last_check_may_take_more_than_was_set_aside(gym, tmp_path, budget):
    """In a world whose episodes are far longer than any that was recorded."""
    real = side(gym, Long)
    out, run = train(gym, tmp_path, real=real, budget=budget, check_every=1, real_rounds=3, force=True)
    spent = header(run)["spent"]
    checks = 4 * len(real.held_out) * real.max_steps
    assert Counted.steps == spent["real"] and f"{Counted.steps} of {budget}" in out.budget
    assert spent["real"] - checks <= budget - 4 * real.cost(6, gym)


def test_a_ledger_by_hand():
    ledger = RealBudget(100)
    ledger.reserve(60, "it")
    assert ledger.free() == 40
    ledger.spend("gate", 10)
    assert (ledger.free(), ledger.used) == (30, 10)
    ledger.spend("check", 25, reserved=True)
    assert (ledger.reserved, ledger.free(), ledger.used) == (35, 30, 35)
    ledger.keep(50)  # the first check took more than half
    assert (ledger.reserved, ledger.free()) == (50, 15)
    ledger.keep(20)
    assert ledger.reserved == 50
    ledger.spend("agreement", 15)
    assert ledger.free() == 0 and str(ledger) == "50 of 100 real transitions (10 gate, 25 check, 15 agreement)"
    ledger.spend("check", 70, reserved=True)
    assert (ledger.reserved, ledger.free(), ledger.used) == (0, 0, 120)
    again = RealBudget(100)
    again.load_state_dict(json.loads(json.dumps(ledger.state_dict())))
    assert again == ledger
    with pytest.raises(UserError, match="--real-budget 130"):
        ledger.reserve(10, "more")
    free = RealBudget(None)
    free.reserve(10**9, "all")
    assert free.free() == math.inf and str(free) == "0 real transitions (none)"


def test_real_steps_that_raise_are_counted_and_void_beyond_the_limit(gym):
    class Dies(Counted):
        async def step(self, action):
            await super().step(action)
            raise RuntimeError("the shop burned down")

    factory, count = side(gym, Dies).metered(lambda: 3)

    async def go() -> list[str]:
        said = []
        for _ in range(5):
            env = factory()
            await env.reset(WORLD.splits["train"].tasks[0], 0)
            with pytest.raises((RuntimeError, EnvError)) as told:
                await env.step("x")
            said.append(str(told.value))
        return said

    said = asyncio.run(go())
    assert said == ["the shop burned down"] * 3 + [rounds.SPENT] * 2 and count["steps"] == Counted.steps == 3


# ---------------------------------------------------------------------- which tasks


def test_held_out_tasks_are_never_practised_on(gym):
    mixed = RealSide.of(gym, Desk, WORLD.splits["train"])
    train_ids = set(gym.splits["train"])
    assert len(train_ids) == 60 and len(mixed.held_out) == len(WORLD.splits["train"]) - 60
    assert {t.id for t in mixed.practice} == train_ids and not train_ids & {t.id for t in mixed.held_out}
    only_new = RealSide.of(gym, Desk, test_tasks)
    assert len(only_new.held_out) == len(test_tasks) and {t.id for t in only_new.practice} == train_ids
    logged = RealSide.of(gym, Desk)
    assert {t.id for t in logged.practice} == train_ids
    assert {t.id for t in logged.held_out} == {*gym.splits["dev"], *gym.splits["test"]}
    with pytest.raises(UserError, match="nothing is held out"):
        RealSide.of(gym, Desk, mixed.practice)


def test_tasks_without_criteria_are_held_out_all_the_same(folder):
    gym = Gym.load(folder, reward_source="criteria")
    assert len(RealSide.of(gym, Desk).held_out) == len({*gym.splits["dev"], *gym.splits["test"]})


# ---------------------------------------------------------------------- halts


def say(monkeypatch, *pairs: tuple[float, float]) -> None:
    """What the measurements on the way find: success in the dream and in reality."""
    left = iter(pairs)

    def found(dream, real):
        one, two = next(left)
        return dataclasses.replace(REAL(dream, real), dream=one, real=two, tasks=64, gap=one - two)

    monkeypatch.setattr(rounds, "agreement", found)


REAL = rounds.agreement


def weights(policy_folder: Path):
    from rlready.policy.tiny import load_policy

    return load_policy(policy_folder).learner.weights()


def healthy(run: Run) -> str:
    return sorted(p.name for p in (run.dir / "checkpoints").glob("dream-RL/*"))[-1]


def kept(run: Run) -> None:
    """The saved model is the last checkpoint's."""
    from rlready.checkpoint import load_state

    state = load_state(run.dir / "checkpoints" / "dream-RL" / healthy(run), "learner")["model"]
    for name, tensor in weights(run.dir / "model").items():
        assert torch.equal(tensor, state[name]), name


def test_dream_up_while_reality_falls_halts(gym, tmp_path, monkeypatch):
    say(monkeypatch, (0.5, 0.5), (0.5, 0.5), (0.62, 0.3))
    out, run = train(gym, tmp_path, real=side(gym), steps=6, check_every=2, real_rounds=0)
    assert out.halted and "dream" in out.halted and "reality" in out.halted and "62%" in out.halted
    assert header(run)["halted"]["step"] == 4 and healthy(run) == "step-00000003"
    assert out.difference is not None  # the last healthy one is still checked
    kept(run)


def test_a_dream_that_flatters_more_and_more_halts(gym, tmp_path, monkeypatch):
    say(monkeypatch, (0.5, 0.5), (0.9, 0.5))
    out, run = train(gym, tmp_path, real=side(gym), steps=4, check_every=1, real_rounds=0)
    assert out.halted and "gap" in out.halted and header(run)["halted"]["step"] == 1
    assert healthy(run) == "step-00000000"
    kept(run)


def test_both_rising_does_not_halt(gym, tmp_path, monkeypatch):
    say(monkeypatch, (0.5, 0.4), (0.6, 0.5), (0.8, 0.7), (0.9, 0.8))
    out, _ = train(gym, tmp_path, real=side(gym), steps=3, check_every=1, real_rounds=0)
    assert out.halted is None


def test_a_jump_of_kl_halts(gym, tmp_path, monkeypatch):
    update = GRPO.update
    made = []

    async def jumps(self, policy, groups):
        made.append(1)
        found = await update(self, policy, groups)
        return found | ({"kl/behaviour": 3.0} if len(made) == 2 else {})

    monkeypatch.setattr(GRPO, "update", jumps)
    out, run = train(gym, tmp_path, steps=4, check_every=0)
    assert out.halted and "update/kl/behaviour is 3, above 0.5" in out.halted
    assert header(run)["halted"]["step"] == 2 and healthy(run) == "step-00000001"
    kept(run)


def test_a_penalty_against_the_clone_works_and_keeps_its_reference(gym, tmp_path):
    _, run = train(gym, tmp_path, algorithm=GRPO(minibatches=2, kl=0.1), steps=2, check_every=0, rl_lr=1e-2)
    lines = [line for line in lines_of(run.dir, "metrics.jsonl") if "update/kl/reference" in line]
    assert len(lines) == 2


# ---------------------------------------------------------------------- real rounds


def test_real_rounds_mix_and_repair(gym, tmp_path, monkeypatch):
    before, learned = len(gym.library), []
    learn = Gym.learn

    async def heard(self, episodes, *, seed=0):
        learned.append(list(episodes))
        return await learn(self, episodes, seed=seed)

    monkeypatch.setattr(Gym, "learn", heard)
    _, run = train(gym, tmp_path, real=side(gym, practice=5), steps=5, real_rounds=2, check_every=0)
    lines = {line["step"]: line for line in lines_of(run.dir, "metrics.jsonl") if line["stage"] == "dream RL"}
    assert [s for s in lines if "real/episodes" in lines[s]] == [2, 3] and lines[5]["real_rounds"] == 2
    assert all("update/loss/policy" in lines[s] for s in (2, 3))  # they train the policy like any batch
    assert len(gym.library) == before + len({e for es in learned for e in es})
    assert {e.source for es in learned for e in es} == {"real"}
    assert {e.task_id for es in learned for e in es} <= {t.id for t in side(gym, practice=5).practice}


def test_real_rounds_that_cannot_be_paid_are_dreamt(gym, tmp_path):
    real = side(gym)
    out, run = train(gym, tmp_path, real=real, budget=GATE + 4 * real.cost(6, gym), check_every=0)
    lines = [line for line in lines_of(run.dir, "metrics.jsonl") if line["stage"] == "dream RL"]
    assert lines[-1]["real_rounds"] == 0 and "mixing" not in header(run)["spent"] and "mixing" not in out.budget


class Script:
    """An actor that says what it was given."""

    def __init__(self, *texts: str) -> None:
        self.texts = texts

    def start(self, task, seed, sample=0):
        self.left = list(self.texts)
        return self

    async def act(self, observation, trajectory):
        text, seen = self.left.pop(0), sum(len(t.context) for t in trajectory.turns)
        return Turn([], [], text=text, context=observation.messages[seen:])

    def close(self):
        pass


def test_a_real_episode_becomes_a_recording_with_its_errors(gym):
    task = side(gym).practice.tasks[0]
    order = task.data["ticket"]["order"]
    look = f'<tool_call>{{"name": "get_order", "arguments": {{"order": "{order}"}}}}</tool_call>'
    wrong = '<tool_call>{"name": "get_order", "arguments": {"order": "order_none"}}</tool_call>'
    texts = (look, wrong, "The case is closed.")
    played = run_sync(play(task, Desk, Script(*texts), side(gym).practice, seed=9))  # type: ignore[arg-type]
    e = episode_from(gym, played)
    assert e.task_id == task.id and e.instruction == task.prompt[-1].text and e.source == "real" and e.seed == 9
    assert e.actions == tuple(gym.domain.parse(t)[0].text for t in texts) and e.finished
    assert json.loads(e.replies[0])["order"] == order and "error" in e.replies[1].lower()
    assert e.errors == (1,) and e.success == (played.verdict is Verdict.RIGHT)
    library = Library([e], gym.domain, gym.state)
    assert [r.failed for _, r in library.steps(next(iter(library)))] == [False, True, False]


# ---------------------------------------------------------------------- cloning


def test_what_is_cloned(gym):
    policy, _ = policy_of("tiny", gym, DreamTrainConfig(**QUICK), 0, Path("/nonexistent"))
    won = [i for i, e in gym.library.episodes.items() if e.success]
    whole = trajectory_of(gym, won[0], policy.renderer)
    episode = gym.library.episodes[won[0]]
    assert [t.text for t in whole.turns] == [a for a in episode.actions if a]
    for turn, i in zip(whole.turns, range(len(episode)), strict=False):
        assert turn.trainable is (i not in episode.errors)
    rows, left_out = rows_of(gym, won[:5], policy)
    assert left_out == 0 and len(rows) >= 5
    assert rows_of(gym, won[:5], policy, longest=3) == ([], 5)


def broke(gym: Gym, **changes) -> Gym:
    """The gym with its recordings changed."""
    runs = [replace(e, **changes) for e in gym.library.episodes.values()]
    library = Library(runs, gym.domain, gym.state)
    return Gym(gym.domain, gym.state, library, gym.simulator, splits=gym.splits, reward_source="model")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"judged": False, "reward": None}, "no recorded success to clone"),
        ({"success": False}, "no recorded success to clone"),
        ({"source": "random"}, "no recorded success to clone"),
    ],
)
def test_nothing_to_clone_is_one_sentence(gym, tmp_path, changes, named):
    with pytest.raises(UserError, match=named):
        train(broke(gym, **changes), tmp_path, force=True)


def test_all_recordings_are_cloned_where_that_is_asked(gym, tmp_path):
    out, run = train(broke(gym, judged=False, reward=None), tmp_path, clone_from="all", steps=0, force=True)
    clone_record = json.loads((run.dir / "stages" / "clone" / "record.json").read_text())["result"]
    agents = sum(e.source != "random" for e in gym.library.episodes.values())
    assert clone_record["recordings"] == agents and out.skipped


def test_a_policy_that_is_too_short_is_one_sentence(gym, tmp_path):
    with pytest.raises(UserError, match=r"tiny\.max_len"):
        train(gym, tmp_path, tiny=dataclasses.replace(QUICK["tiny"], max_len=16))


def test_words_that_no_log_held_are_read(gym, tmp_path):
    """A real environment with another wording does not stop the run: the policy reads an unknown word."""

    class Talks(Desk):
        async def step(self, action):
            step = await super().step(action)
            if not step.terminated and not step.truncated:
                self._messages[-1] = replace(self._messages[-1], content="Zounds, heretofore unheard!")
                step.observation.messages = tuple(self._messages)
            return step

    out, _ = train(gym, tmp_path, real=side(gym, Talks), steps=2)
    assert out.difference is not None
