"""Scripted play: how good each script is, and how scripts are mixed."""

import asyncio
import random
from collections import Counter
from types import SimpleNamespace

import pytest

from rlready.envs.base import Env, Observation, Step
from rlready.errors import UserError
from rlready.types import Message, Task
from rlready.worlds.scripts import mix, play
from rlready.worlds.tau2 import DEMONSTRATIONS, telecom

WORLD = telecom()
TEST = WORLD.splits["test"]


def logs(script, tasks, seed=0):
    async def go():
        return [
            await play(WORLD.env(), t, script, random.Random(f"{seed} {t.id}"), closing=WORLD.closing) for t in tasks
        ]

    return asyncio.run(go())


def rate(episodes):
    return sum(e.success for e in episodes) / len(episodes)


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("random", 0, 0.01),
        ("blind", 0.12, 0.23),
        ("blind_undo", 0.98, 1),
        ("look", 0.97, 1),
        ("look_shuffled", 0.97, 1),
        ("look_skip10", 0.50, 0.66),
        ("look_skip25", 0.18, 0.33),
        ("look_partial", 0.30, 0.48),
        ("spliced", 0.30, 0.48),
    ],
)
def test_success_on_held_out_fault_sets(name, least, most):
    assert least <= rate(logs(WORLD.scripts[name], TEST)) <= most


def test_looking_takes_about_14_steps_and_fixes_what_it_saw_only():
    episodes = logs(WORLD.scripts["look"], TEST)
    assert 13.3 < sum(map(len, episodes)) / len(episodes) < 14.3
    for episode in episodes:
        seen = " ".join(episode.replies).split()
        assert ("refuel_2" in episode.actions) == ("used_over" in seen)
        assert ("toggle_roaming" in episode.actions) <= ("roam_off" in seen)


def test_no_usual_script_lives_off_the_quirks_of_the_check():
    async def quirks(name):
        found = Counter()
        for task in TEST:
            env = WORLD.env()
            player = WORLD.scripts[name](task, random.Random(task.id))
            await env.reset(task, 0)
            action = next(player)
            while True:
                step = await env.step(action)
                if step.terminated or step.truncated:
                    break
                try:
                    action = player.send(step.observation.messages[-1].text)
                except StopIteration:
                    action = "done"
            found.update(step.info.get("quirks", "").split())
        return found

    for name in ("blind", "blind_undo", "look", "look_skip10", "spliced"):
        assert not asyncio.run(quirks(name))


def test_a_mixture_plays_its_scripts_in_proportion():
    def named(name):
        def script(task, rng):
            reply = yield name
            assert reply == "error unknown_action"

        return script

    fake = SimpleNamespace(name="fake", scripts={n: named(n) for n in ("often", "seldom", "never")})
    script = mix(fake, {"often": 3, "seldom": 1})
    episodes = [e for seed in range(4) for e in logs(script, TEST.head(200), seed)]
    count = Counter(e.actions[0] for e in episodes)
    assert set(count) == {"often", "seldom"} and 0.7 < count["often"] / 800 < 0.8
    assert all(e.actions[1:] == ("done",) for e in episodes)


def test_demonstrations_are_of_mixed_quality():
    script = mix(WORLD, DEMONSTRATIONS)
    episodes = logs(script, WORLD.splits["train"].head(400))
    assert 0.28 < rate(episodes) < 0.45
    assert episodes == logs(script, WORLD.splits["train"].head(400))


def test_bad_mixtures_are_refused():
    with pytest.raises(UserError, match=r'"lok".*Did you mean look'):
        mix(WORLD, {"lok": 1})
    with pytest.raises(UserError, match='"look" is 0; it must be a positive'):
        mix(WORLD, {"look": 0})
    with pytest.raises(UserError, match="at least one script"):
        mix(WORLD, {})


def test_play_closes_the_environment_also_after_a_failure():
    class Broken(Env):
        closed = False

        async def reset(self, task, seed):
            return Observation("go")

        async def step(self, action):
            raise RuntimeError("broken")

        async def close(self):
            self.closed = True

    env = Broken()
    with pytest.raises(RuntimeError, match="broken"):
        asyncio.run(play(env, Task.of("x"), WORLD.scripts["random"], random.Random(0), closing="done"))
    assert env.closed


def test_play_logs_what_came_back():
    class Echo(Env):
        async def reset(self, task, seed):
            self.said = []
            return Observation(task.prompt)

        async def step(self, action):
            self.said += [Message("assistant", action), *([] if action == "stop" else [Message("tool", action * 2)])]
            end = action == "stop"
            return Step(Observation(self.said), reward=float(end), terminated=end, truncated=len(self.said) >= 6)

    def script(task, rng):
        reply = yield "a"
        assert (yield reply) == "aaaa"

    log = asyncio.run(play(Echo(), Task.of("hello"), script, random.Random(0), closing="stop", seed=4, source="me"))
    assert (log.instruction, log.actions, log.replies) == ("hello", ("a", "aa", "stop"), ("aa", "aaaa", ""))
    assert (log.success, log.finished, log.seed, log.source) == (True, True, 4, "me")

    def endless(task, rng):
        while True:
            yield "b"

    log = asyncio.run(play(Echo(), Task.of("hello"), endless, random.Random(0), closing="stop"))
    assert (log.actions, log.replies, log.success, log.finished) == (("b",) * 3, ("bb",) * 3, False, False)
