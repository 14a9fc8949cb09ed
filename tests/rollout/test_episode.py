"""Actors and single episodes: exact ids, seeds, one deadline, every fault of an environment becomes a sentence."""

import asyncio
import logging
import math
import random
import re
import time

import pytest

from rlready.envs.base import Env, Observation, Step
from rlready.errors import UserError
from rlready.policy.base import SamplingParams
from rlready.rollout.actors import PolicyActor, ScriptActor
from rlready.rollout.compile import compile_trajectory
from rlready.rollout.episode import play
from rlready.seeds import derive
from rlready.types import Message, Score, Task, Verdict
from tests.rollout.rollout_fakes import Broken, Lamps, lamps, policy


def run(task, env, actor, tasks, **kw):
    kw = {"seed": 5, "max_steps": 12, "deadline": 5.0} | kw
    return asyncio.run(play(task, env, actor, tasks, **kw))


def test_an_episode_is_token_exact_and_one_row():
    tasks, acting = lamps(), policy()
    trajectory = run(tasks[0], Lamps, PolicyActor(acting, seed=3), tasks, sample=2)
    words = acting.renderer
    assert trajectory.failure is None and trajectory.verdict in (Verdict.RIGHT, Verdict.WRONG)
    assert trajectory.env_steps == len(trajectory.turns)
    # The last prompt is what the environment said and the policy sampled, word for word.
    said = []
    for turn in trajectory.turns:
        said += [word for m in turn.context for word in (f"<{m.role}>", *m.text.split())] + ["<assistant>"]
        assert [words.words[i] for i in turn.prompt_ids] == said
        said += [words.words[i] for i in turn.completion_ids]
    assert [t.parent for t in trajectory.turns] == [None, *range(len(trajectory.turns) - 1)]
    trajectory.assign(1.0)
    (row,) = compile_trajectory(trajectory)
    assert row.weights["policy"].sum() == trajectory.length
    # Seeds, session, choices: what the sampler was asked.
    requests = acting.sampler.requests
    assert [r.seed for r in requests] == [derive(3, "act", tasks[0].id, 5, 2, i) for i in range(len(requests))]
    assert len({r.session for r in requests}) == 1 and acting.sampler.released == [requests[0].session]
    assert len({id(r.params) for r in requests}) == 1  # choices are built once
    assert requests[0].params.stop_ids == words.stop_ids
    first = trajectory.turns[0]
    assert first.support[0].tolist() == sorted({words.id("press"), words.id("done")})
    assert first.logprobs[0] == pytest.approx(-math.log(2))


def test_same_seeds_same_episode_and_other_members_differ():
    tasks = lamps()

    def texts(**kw):
        return [t.text for t in run(tasks[0], Lamps, PolicyActor(policy(), seed=3), tasks, **kw).turns]

    assert texts(sample=1) == texts(sample=1)
    assert len({tuple(texts(sample=i)) for i in range(8)}) > 2


def test_last_reply_step_info_reward_and_truncation():
    tasks = lamps(1)
    actor = ScriptActor(
        lambda task, chance: (a for a in ("press 0", "press 1", "press 2")), policy().renderer, closing="done"
    )
    won = run(tasks[0], Lamps, actor, tasks)
    assert [t.text for t in won.turns] == ["press 0", "press 1", "press 2", "done"]
    assert (won.reward, won.verdict, won.truncated, won.env_steps) == (1.0, Verdict.RIGHT, False, 4)
    assert [t.reward for t in won.turns] == [0, 0, 0, 1]
    assert won.info == {"script": "script", "last_reply": "light", "env": {"lit": True}}
    cut = run(tasks[0], Lamps, actor, tasks, max_steps=3)
    assert (cut.truncated, cut.env_steps, cut.verdict) == (True, 3, Verdict.WRONG)
    assert cut.info["last_reply"] == "light"


def test_scripts_hear_replies_and_their_turns_suit_supervised_learning():
    tasks = lamps(1)

    def seeker(task, chance):
        for lamp in range(3):
            reply = yield f"press {lamp}"
            if reply == "light":
                return

    acting = policy()
    episode = run(tasks[0], Lamps, ScriptActor({"seeker": seeker}, acting.renderer, closing="done"), tasks)
    assert episode.success and episode.turns[-2].text.startswith("press") and episode.info["script"] == "seeker"
    hidden = int(episode.turns[-2].text[-1])
    assert [t.text for t in episode.turns] == [f"press {i}" for i in range(hidden + 1)] + ["done"]
    (row,) = compile_trajectory(episode, streams=("nll",))
    trained = [acting.renderer.words[i] for i in row.tokens[row.weights["nll"] > 0]]
    assert trained == [*" ".join(f"press {i} </s>" for i in range(hidden + 1)).split(), "done", "</s>"]


def test_a_mix_of_scripts_follows_its_weights_and_refuses_unknown_names():
    def one(name):
        return lambda task, chance: (x for x in [name])

    renderer = policy().renderer
    actor = ScriptActor({"a": one("a"), "b": one("b")}, renderer, closing="done", mix={"a": 3, "b": 1})
    names = [actor.start(Task.of(str(i)), 0)._name for i in range(2000)]
    assert 0.70 < names.count("a") / 2000 < 0.80
    for mix, said in (
        ({"aa": 1.0}, r'"aa".*Did you mean a'),
        ({"a": 0}, '"a" is 0; it must be a positive'),
        ({}, "at least one"),
    ):
        with pytest.raises(UserError, match=said):
            ScriptActor({"a": one("a")}, renderer, closing="done", mix=mix)


class Notebook(Env):
    """Rewrites its context: from the third observation on, only a memory is shown."""

    async def reset(self, task, seed):
        self.count = 0
        self.messages = [Message.user("begin")]
        return Observation(self.messages)

    async def step(self, action):
        self.count += 1
        if self.count == 2:
            self.messages = [Message.user(f"memory {action}")]
        else:
            self.messages = [*self.messages, Message("assistant", action), Message.user("more")]
        return Step(Observation(self.messages), terminated=self.count == 4)


def test_a_rewritten_context_starts_afresh():
    trajectory = run(lamps(1)[0], Notebook, PolicyActor(policy()), lamps(1))
    assert [t.parent for t in trajectory.turns] == [None, 0, None, 2]
    assert [m.text for m in trajectory.turns[2].context] == [f"memory {trajectory.turns[1].text}"]
    trajectory.assign(1.0)
    assert len(compile_trajectory(trajectory)) == 2


def test_an_assistant_message_that_was_not_sampled_starts_afresh():
    class Censor(Notebook):
        async def step(self, action):
            self.count += 1
            self.messages = [*self.messages, Message("assistant", "something else"), Message.user("more")]
            return Step(Observation(self.messages), terminated=self.count == 2)

    assert [t.parent for t in run(lamps(1)[0], Censor, PolicyActor(policy()), lamps(1)).turns] == [None, None]


def test_greedy_is_recorded_and_an_empty_list_of_actions_is_refused():
    tasks = lamps(1)
    turns = run(tasks[0], Lamps, PolicyActor(policy(), SamplingParams(temperature=0.0)), tasks, max_steps=2).turns
    assert [t.temperature for t in turns] == [0.0, 0.0]
    with pytest.raises(UserError, match="empty list of actions"):
        PolicyActor(policy()).params_for(())


FAULTS = {
    "reset raises": r"Broken reset raised KeyError: 'no such room' \(rollout_fakes\.py, line \d+\)",
    "reset hangs": r"Broken missed the deadline of 0\.3 s in phase boot after 0 steps",
    "reset type": "reset gave str, not an Observation",
    "no messages": "reset gave an observation without messages",
    "step raises": r"Broken step raised RuntimeError: the fuse blew",
    "step hangs": r"missed the deadline of 0\.3 s in phase env after 0 steps",
    "step type": "step gave tuple, not a Step",
    "observation type": "step gave str, not an Observation",
    "nan reward": "step gave the reward nan, not a finite number",
    "text reward": "step gave the reward 'much', not a finite number",
    "void": "^the simulator wrote nonsense$",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_environments_fault_is_a_sentence_and_it_is_closed(fault):
    tasks = lamps(1, fault=fault)
    before = Broken.closed
    trajectory = run(tasks[0], Broken, PolicyActor(policy()), tasks, deadline=0.3)
    assert trajectory.failure is not None
    assert re.search(FAULTS[fault], trajectory.failure), trajectory.failure
    assert trajectory.excluded and math.isnan(trajectory.reward) and trajectory.verdict is None
    assert Broken.closed == before + 1


def test_a_factory_that_fails_or_makes_something_else():
    tasks = lamps(1)

    def dead():
        raise ConnectionError("no server")

    assert "could not be made: ConnectionError: no server" in run(tasks[0], dead, PolicyActor(policy()), tasks).failure
    assert "returned dict, not an Env" in run(tasks[0], dict, PolicyActor(policy()), tasks).failure


def test_a_step_that_is_not_async_is_explained():
    class Sync(Lamps):
        def step(self, action):
            return Step(self.look())

    tasks = lamps(1)
    assert "must be `async def`, but returned Step" in run(tasks[0], Sync, PolicyActor(policy()), tasks).failure


def test_a_failing_close_does_not_void_the_episode(caplog):
    tasks = lamps(1, fault="close raises")
    with caplog.at_level(logging.WARNING):
        trajectory = run(tasks[0], Broken, PolicyActor(policy()), tasks)
    assert trajectory.failure is None and not trajectory.excluded
    assert trajectory.info["close"] == "Broken.close raised OSError: already gone" and "already gone" in caplog.text


def test_grading_shares_the_deadline_and_its_failures_are_not_wrong_answers():
    tasks = lamps(1)

    async def slow(task, trajectory):
        await asyncio.sleep(60)

    async def raises(task, trajectory):
        raise ZeroDivisionError("no reference answer")

    async def nan(task, trajectory):
        return Score(math.nan)

    async def number(task, trajectory):
        return 1.0

    tasks.scorer = slow
    late = run(tasks[0], Lamps, PolicyActor(policy()), tasks, deadline=0.3)
    assert "in phase score" in late.failure and late.excluded
    for scorer, note in (
        (raises, "ZeroDivisionError: no reference"),
        (nan, "returned nan"),
        (number, "returned float"),
    ):
        tasks.scorer = scorer
        trajectory = run(tasks[0], Lamps, PolicyActor(policy()), tasks)
        assert trajectory.excluded and trajectory.failure is None
        assert trajectory.verdict is Verdict.GRADER_FAILED and note in trajectory.info["note"]


def test_cancellation_still_closes_the_environment():
    tasks = lamps(1, fault="step hangs")
    acting = policy()

    async def main():
        task = asyncio.ensure_future(play(tasks[0], Broken, PolicyActor(acting), tasks, seed=1, deadline=None))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    before = Broken.closed
    asyncio.run(main())
    assert Broken.closed == before + 1 and len(acting.sampler.released) == 1


def test_what_the_policy_does_wrong_is_raised():
    acting = policy()

    async def sample(requests):
        raise ValueError("prompt too long")

    acting.sampler.sample = sample
    before = Lamps.closed
    with pytest.raises(ValueError, match="prompt too long"):
        run(lamps(1)[0], Lamps, PolicyActor(acting), lamps(1))
    assert Lamps.closed == before + 1


def test_timings_tell_working_from_waiting():
    class Slow(Lamps):
        async def step(self, action):
            await asyncio.sleep(0.05)  # waits
            end = time.perf_counter() + 0.03
            while time.perf_counter() < end:  # works
                pass
            return await super().step(action)

    tasks = lamps(1)
    trajectory = run(tasks[0], Slow, PolicyActor(policy(delay=0.02)), tasks, max_steps=3)
    n, timings = trajectory.env_steps, trajectory.timings
    assert timings["env"] >= 0.08 * n and 0.03 * n <= timings["env_busy"] <= timings["env"] - 0.05 * n
    assert timings["sample"] >= 0.02 * n
    assert timings["total"] >= timings["env"] + timings["sample"]


def test_scripts_chance_depends_on_the_episode():
    drawn = []

    def script(task, chance: random.Random):
        drawn.append(chance.random())
        yield "done"

    tasks = lamps(2)
    actor = ScriptActor(script, policy().renderer, closing="done", seed=1)
    for task, seed, sample in ((0, 0, 0), (0, 0, 0), (0, 1, 0), (0, 0, 1), (1, 0, 0)):
        run(tasks[task], Lamps, actor, tasks, seed=seed, sample=sample)
    assert drawn[0] == drawn[1] and len(set(drawn)) == 4
