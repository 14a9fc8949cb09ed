"""Scripted play: how good each script is, and how scripts are mixed."""

import pytest

from rlready.worlds.tau2 import DEMONSTRATIONS, telecom
from tests.worlds.scripted import logs, trajectories

WORLD = telecom()
TEST = WORLD.splits["test"]


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
    assert least <= rate(logs(WORLD.scripts[name], TEST, WORLD.env)) <= most


def test_looking_takes_about_14_steps_and_fixes_what_it_saw_only():
    episodes = logs(WORLD.scripts["look"], TEST, WORLD.env)
    assert 13.3 < sum(map(len, episodes)) / len(episodes) < 14.3
    for episode in episodes:
        seen = " ".join(episode.replies).split()
        assert ("refuel_2" in episode.actions) == ("used_over" in seen)
        assert ("toggle_roaming" in episode.actions) <= ("roam_off" in seen)


@pytest.mark.parametrize("name", ["blind", "blind_undo", "look", "look_skip10", "spliced"])
def test_no_usual_script_lives_off_the_quirks_of_the_check(name):
    assert not any(t.info.get("env", {}).get("quirks") for t in trajectories(WORLD.scripts[name], TEST, WORLD.env))


def test_demonstrations_are_of_mixed_quality():
    train = WORLD.splits["train"].head(400)
    episodes = logs(WORLD.scripts, train, WORLD.env, mix=DEMONSTRATIONS)
    assert 0.28 < rate(episodes) < 0.45
    assert episodes == logs(WORLD.scripts, train, WORLD.env, mix=DEMONSTRATIONS)
