"""The dream behaves as an environment must: the real one's messages, one world per group, same actions same episode."""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import Any

import pytest

from rlready.dream.checks import closed_loop, invalid_recall, replay, same_actions
from rlready.dream.env import DreamEnv
from rlready.dream.format import DreamFormat
from rlready.dream.memory import DreamMemory
from rlready.dream.model import DreamConfig, ExperienceModel
from rlready.envs.base import Env, Observation, Step
from rlready.errors import EnvError
from rlready.policy.base import Policy, SampleRequest
from rlready.types import Message, Task
from tests.dream.dream_phone import ACTIONS, ScriptedSampler, Writer, form, garbled, logged, phone

TASK = Task((Message.user("phone dead"),), {"n": 1})
INVALID = "error unknown_action"


def dream(write: Writer = phone, **config: Any) -> ExperienceModel:
    f = form()
    memory = DreamMemory(f)
    memory.seed(*zip(logged("k1"), logged("k2", success=False), strict=True))
    return ExperienceModel(f, Policy(ScriptedSampler(f, write), None), memory, DreamConfig(**config))  # type: ignore[arg-type]


def sampler(model: ExperienceModel) -> ScriptedSampler:
    assert isinstance(model.policy.sampler, ScriptedSampler)
    return model.policy.sampler


def task(*card: str) -> Task:
    return Task((Message.user("phone dead"),), {"card": list(card)})


class Phone(Env):
    """The real thing."""

    def __init__(self, cap: int = 18) -> None:
        self.cap = cap

    async def reset(self, task: Task, seed: int) -> Observation:
        self.left, self.n, self.messages = list(task.data["card"]), 0, task.prompt
        return Observation(self.messages, ACTIONS)

    async def step(self, action: str) -> Step:
        self.n += 1
        self.messages += (Message("assistant", action),)
        if action == "done":
            return Step(Observation(self.messages, ACTIONS), float(not self.left), terminated=True)
        reply = INVALID
        if action == "look":
            reply = f"{'air_on' if 'air' in self.left else 'air_off'} {'sim_out' if 'sim' in self.left else 'sim_in'}"
        elif action in ACTIONS:
            self.left = [w for w in self.left if w != action.split()[1]]
            reply = "ok"
        self.messages += (Message("tool", reply),)
        return Step(Observation(self.messages, ACTIONS), truncated=self.n >= self.cap)


def test_with_a_perfect_model_nobody_can_tell_dream_from_reality() -> None:
    """Random play, invalid texts among it: the same messages, admissible actions, rewards and endings."""
    rng = random.Random(0)
    model = dream()

    async def both() -> None:
        for _ in range(60):
            t = task(*rng.choice([("air",), ("sim",), ("air", "sim")]))
            real, dreamt = Phone(cap=6), DreamEnv(model, cap=6)
            a, b = await real.reset(t, 3), await dreamt.reset(t, 3)
            assert (a.messages, a.actions) == (b.messages, b.actions)
            while True:
                action = rng.choice([*ACTIONS, "look", "dance", "fix"])
                x, y = await real.step(action), await dreamt.step(action)
                assert (x.observation.messages, x.observation.actions) == (
                    y.observation.messages,
                    y.observation.actions,
                )
                assert (x.reward, x.terminated, x.truncated) == (y.reward, y.terminated, y.truncated)
                if x.terminated or x.truncated:
                    break

    asyncio.run(both())


@pytest.mark.parametrize("write", [phone, None])
def test_it_keeps_the_contract_of_environments(write: Writer | None) -> None:
    from rlready.envs.check import check_env

    model = dream(write or noisy)
    tasks = [TASK, task("air"), task("sim"), task("air", "sim")]
    findings = check_env(lambda: DreamEnv(model), tasks, closing="done", episodes=4)
    findings.raise_for_errors()
    assert "0 errors, 0 warnings" in str(findings)


def test_a_group_shares_its_hidden_world_and_seeds_differ() -> None:
    model = dream()

    async def worlds(seed: int) -> set[tuple[str, ...]]:
        envs = [DreamEnv(model) for _ in range(8)]
        await asyncio.gather(*(e.reset(TASK, seed) for e in envs))
        return {e.card for e in envs}

    seen = [asyncio.run(worlds(seed)) for seed in range(20)]
    assert all(len(cards) == 1 for cards in seen)
    assert len(set.union(*seen)) == 3
    again = dream()
    assert [asyncio.run(again.draw_card("phone dead", s)) for s in range(20)] == [min(c) for c in seen]


def noisy(prompt: str, request: SampleRequest) -> str:
    """Answers "look" by a coin that only the request's noise decides."""
    said = phone(prompt, request)
    if "<card>" in prompt and " look (" in prompt.rsplit("<go>", 1)[-1]:
        return said.replace("air_on", "air_off" if request.seed % 2 else "air_on")
    return said


SCRIPT = ["look", "fix air", "look", "look", "fix sim", "look", "done"]


def test_same_actions_give_the_same_episode_also_with_noise() -> None:
    model = dream(noisy)
    report = asyncio.run(same_actions(lambda: DreamEnv(model), [(task("air"), SCRIPT), (task("air", "sim"), SCRIPT)]))
    assert report.passed and report.different == 0 and report.reward_variance == 0 and report.void == 0
    # ... while different worlds and different histories do meet different noise.
    shown = {asyncio.run(replay(lambda: DreamEnv(model), task("air"), s, ["look"])).shown for s in range(12)}
    assert len(shown) == 2
    looks = asyncio.run(replay(lambda: DreamEnv(model), task("air"), 5, ["look"] * 14)).shown
    assert {text for role, text in looks if role == "tool"} == {"air_on sim_in", "air_off sim_in"}


class Leaky(DreamEnv):
    """Noise from a counter: what naive sampling does."""

    count = itertools.count()

    async def step(self, action: str) -> Step:
        self._noise = next(self.count)
        return await super().step(action)


def test_the_determinism_check_catches_a_leak() -> None:
    model = dream(noisy)
    report = asyncio.run(same_actions(lambda: Leaky(model), [(task("air"), SCRIPT)], replays=12))
    assert not report.passed and report.different == 1 and "air_o" in report.example


def test_demonstrations_are_retrieved_and_the_prompt_only_grows() -> None:
    model = dream()
    asyncio.run(replay(lambda: DreamEnv(model), task("air", "sim"), 0, ["look", "fix air", "fix sim", "done"]))
    prompts = [r.prompt_ids for r in sampler(model).requests]
    words = model.form.decode(prompts[-1])
    assert words == (
        "<s> phone dead <card> air sim <go> look ( air_on sim_out <or> fix air ok ) air sim <so> air_on sim_out <go> "
        "fix air ( ok <or> look air_on sim_out ) sim <so> ok <go> fix sim ( ok <or> fix air ok ) <so> ok <go> "
        "done ( <right> <or> <wrong> )"
    )
    for before, after in itertools.pairwise(prompts):
        assert after[: len(before)] == before
    assert len({id(r.session) for r in sampler(model).requests}) == 1
    assert sampler(model).released == [sampler(model).requests[0].session]


def test_own_task_is_kept_out_of_the_demonstrations() -> None:
    model = dream()
    own = Task((Message.user("phone dead"),), {"card": ["air", "sim"]}, id="k1")
    asyncio.run(replay(lambda: DreamEnv(model), own, 0, ["look", "fix sim"]))
    last = model.form.decode(sampler(model).requests[-1].prompt_ids).split(" <go> ")[-1]
    assert last == "fix sim ( fix air ok <or> look air_on sim_out )"  # only task k1 ever did "fix sim"


def test_unreadable_answers_are_drawn_once_more_then_void_the_episode() -> None:
    async def run(every: int, seed: int) -> tuple[Step, ExperienceModel]:
        model = dream(garbled(every))
        env = DreamEnv(model)
        await env.reset(task("air"), seed)
        return await env.step("look"), model

    outcomes = [asyncio.run(run(2, seed)) for seed in range(40)]
    failed = [s for s, _ in outcomes if "failure" in s.info]
    mended = [s for s, m in outcomes if "failure" not in s.info and m.resampled == 1]
    assert 4 <= len(failed) <= 18 and len(mended) >= 4
    assert all(len(sampler(m).requests) == 1 + m.resampled <= 2 for _, m in outcomes)
    assert "the answer to look could not be read: the answer has 2 marks" in failed[0].info["failure"]
    assert all(s.reward == 0 and not s.terminated for s in failed)
    assert all(s.observation.messages[-1].text == "air_on sim_in" for s in mended)
    step, model = asyncio.run(run(1, 0))
    assert "failure" in step.info and model.memory.commit()["memory/staged"] == 0


def test_a_void_dream_is_excluded_from_its_group() -> None:
    from rlready.rollout.episode import play
    from rlready.tasks.base import TaskSet
    from rlready.types import Trajectory, Turn

    model = dream(garbled(1))

    class Looker:
        def start(self, task: Task, seed: int, sample: int) -> Looker:
            return self

        async def act(self, observation: Observation, trajectory: Trajectory) -> Turn:
            return Turn([1], [2], text="look")

        def close(self) -> None:
            pass

    tasks = TaskSet([task("air")])
    played = asyncio.run(play(tasks[0], lambda: DreamEnv(model), Looker(), tasks, seed=0))
    assert played.excluded and played.failure is not None and "could not be read" in played.failure


def test_hidden_starts_that_cannot_be_read() -> None:
    def write(prompt: str, request: SampleRequest) -> str:
        return {0: "<go>", 1: "air air <go>"}.get(request.seed % 3, "sim <go>")

    model = dream(write)

    async def tries() -> int:
        failed = 0
        for seed in range(60):
            try:
                assert await model.draw_card("phone dead", seed) == ("sim",)
            except Exception as error:
                failed += 1
                assert "card" in str(error)
        return failed

    failed = asyncio.run(tries())
    assert 8 <= failed <= 30  # (2/3)^3 of 60 is 18
    nothing = dream(lambda prompt, request: "<go>")
    with pytest.raises(EnvError, match=r"no hidden start.*nothing is to be done"):
        asyncio.run(DreamEnv(nothing).reset(TASK, 0))
    with pytest.raises(EnvError, match="no instruction"):
        asyncio.run(DreamEnv(nothing).reset(Task(), 0))
    with pytest.raises(EnvError, match="call reset first"):
        asyncio.run(DreamEnv(nothing).step("look"))


def test_cap_and_invalid_texts_cost_steps() -> None:
    model = dream()

    async def run() -> list[Step]:
        env = DreamEnv(model, cap=3)
        await env.reset(task("air"), 0)
        return [await env.step(a) for a in ("dance", "fix air", "look")]

    invalid, fixed, last = asyncio.run(run())
    assert invalid.info == {"invalid": "dance"} and invalid.observation.messages[-1] == Message("tool", INVALID)
    assert not fixed.truncated and last.truncated and not last.terminated and last.reward == 0
    assert len(sampler(model).requests) == 2  # the model was not asked about the invalid text
    (entry,) = [e for e in (model.memory.commit(), model.memory.store)[1] if e.episode.source == "synthetic"]
    assert entry.episode.actions == ("dance", "fix air", "look") and not entry.episode.finished
    assert entry.notes == {"card": ["air"], "traces": [["air"], [], []]}


def test_invalid_recall_measures_both_halves() -> None:
    model = dream()
    scripts = [(task("air"), ["look", "fix air", "done"]), (task("sim"), ["look"])]
    told = INVALID.__eq__
    good = asyncio.run(invalid_recall(lambda: DreamEnv(model), scripts, ["dance", ""], told=told))
    assert good.passed and good.attempts == 4

    class Tolerant(DreamEnv):
        async def step(self, action: str) -> Step:
            return await super().step(action if action in ACTIONS else "fix air")

    bad = asyncio.run(invalid_recall(lambda: Tolerant(model), scripts, ["dance"], told=told))
    assert bad.told == 0 and bad.unchanged == 0 and not bad.passed


def test_fork_goes_on_alone_and_alike() -> None:
    model = dream(noisy)

    async def run() -> None:
        env = DreamEnv(model)
        await env.reset(task("air"), 1)
        await env.step("look")
        other = await env.fork()
        a = [await env.step(x) for x in ("look", "fix air", "done")]
        b = [await other.step(x) for x in ("look", "fix air", "done")]
        assert [s.observation.messages for s in a] == [s.observation.messages for s in b]
        assert a[-1].reward == b[-1].reward == 1 and env._session is not other._session

    asyncio.run(run())


def test_closed_loop_against_the_real_phone() -> None:
    """A simulator that forgets about the SIM card flatters, and the check says so."""

    def flattering(prompt: str, request: SampleRequest) -> str:
        said = phone(prompt, request)
        return said.replace("sim <so> <wrong>", "<so> <right>")

    model = dream(flattering)

    async def run() -> Any:
        dreams = []
        for actions in (["fix air", "done"], ["look", "fix air", "fix sim", "done"]):
            env = DreamEnv(model)
            t = task("air", "sim")
            await env.reset(t, 0)
            for a in actions:
                await env.step(a)
            dreams.append(t)
        model.memory.commit()
        logs = [e.episode for e in model.memory.store if e.episode.source == "synthetic"]
        return await closed_loop(Phone, [(task("air", "sim"), e) for e in logs])

    report = asyncio.run(run())
    assert (report.episodes, report.outcome, report.flattered) == (2, 0.5, 0.5)
    assert report.replies == 1.0 and report.real_transitions == 6 and report.first_wrong == 3.0


def test_greedy_decoding_is_an_option_and_draws_again_with_temperature() -> None:
    model = dream(garbled(1), greedy=True)
    asyncio.run(replay(lambda: DreamEnv(model), task("air"), 0, ["look"]))
    assert [r.params.temperature for r in sampler(model).requests] == [0.0, 1.0]
    assert all(
        r.params.min_p == 0.1 and set(r.params.stop_ids) == set(model.form.stop_ids) for r in sampler(model).requests
    )


def test_formats_without_card_or_history() -> None:
    f = DreamFormat(
        ACTIONS, "done", form().reply_words, form().note_words, form().instruction_words, card=False, history=1
    )
    model = ExperienceModel(f, Policy(ScriptedSampler(f, lambda p, r: "<so> ok <go>"), None), DreamMemory(f))  # type: ignore[arg-type]
    asyncio.run(replay(lambda: DreamEnv(model), TASK, 0, ["look", "fix air", "fix sim"]))
    assert [f.decode(r.prompt_ids) for r in sampler(model).requests] == [
        "<s> phone dead <card> look ( )",
        "<s> phone dead <card> look ( ) <so> ok <go> fix air ( )",
        "<s> phone dead <card> fix air ( ) <so> ok <go> fix sim ( )",
    ]
