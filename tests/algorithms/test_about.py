"""What the table of algorithms says is read from the classes, and each class says it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from rlready.algorithms import ALGORITHMS, DPO, DPPO, GRPO, PPO, SFT, DrGRPO, PolicyGradient
from rlready.algorithms.about import FORMULAS, combination, explained, facts, lines, settings
from rlready.algorithms.credit import CREDITS


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_says_where_it_is_from_when_to_use_it_and_explains_its_settings(name: str) -> None:
    own = vars(ALGORITHMS[name])
    assert own.get("paper") and own.get("when")
    row = facts(name)
    assert all(isinstance(row[key], str) and row[key] for key in ("credit", "ratio", "clip", "average", "kl"))
    assert 1 < row["lines"] < 1000
    unexplained = [key for key, setting in settings(name).items() if not setting["about"]]
    assert unexplained == []


def test_rows_are_told_apart() -> None:
    """No two have the same combination, unless the difference is in what their papers add beyond these columns."""
    rows: dict[tuple[str, ...], str] = {}
    for name in ALGORITHMS:
        row = facts(name)
        key = tuple(row[part] for part in ("credit", "ratio", "clip", "average", "kl"))
        assert key not in rows, f"{name} and {rows[key]}"
        rows[key] = name


def test_every_rule_of_credit_has_a_formula() -> None:
    assert set(FORMULAS) == set(CREDITS)


def test_combinations_follow_the_fields() -> None:
    assert combination(GRPO()) == {
        "credit": "(r - m) / s", "ratio": "token", "clip": "0.2", "average": "trajectory", "kl": "-",
    }  # fmt: skip
    kl = GRPO(kl=0.04, kl_gradient="naive", clip_high=0.28, clip_low=None, dual_clip=3.0)
    assert combination(kl)["clip"] == "open/0.28, dual 3" and combination(kl)["kl"] == "0.04 k3 in loss, naive"
    in_reward = PolicyGradient(kl=0.01, kl_in="reward")
    assert combination(in_reward)["kl"] == "0.01 k1 in reward"
    assert combination(DPPO())["clip"] == "TV 0.2 from the sampler" and "log^2" in combination(DPPO())["kl"]
    assert combination(DrGRPO(constant=24.0))["average"] == "sum / 24"
    assert combination(PPO())["credit"] == "GAE of a critic"
    assert combination(SFT())["ratio"] == "-"
    assert combination(DPO(beta=0.2))["kl"] == "reference, beta 0.2"


@dataclass(frozen=True)
class Documented(PolicyGradient):
    """First words.

    Attributes:
        delta: said here, over
            two lines: with a colon.
        mine, yours: of both.

    Raises:
        nothing: this is no attribute.
    """

    mine: int = 1
    yours: int = 2
    paper: ClassVar[str] = "x"


def test_explanations_are_those_of_the_nearest_docstring() -> None:
    told = explained(Documented)
    assert told["delta"] == "said here, over two lines: with a colon."
    assert told["mine"] == told["yours"] == "of both."
    assert told["clip_low"].startswith("widths of")  # a parent's
    assert told["epochs"].startswith("passes over")  # a grandparent's
    assert "nothing" not in told


def test_settings_say_which_are_a_presets_own() -> None:
    found = settings("dapo")
    assert found["clip_high"] == {"default": 0.28, "own": True, "about": found["clip_high"]["about"]}
    assert not found["clip_low"]["own"] and "1707.06347" in found["clip_low"]["about"]


def test_line_counts_are_of_code() -> None:
    # class GRPO: decorator, class line, three fields; its rule: def and return
    assert lines("grpo") == 7
    # one field, and the rule of "batch": def, two statements
    assert lines("reinforce") == 6
    assert lines("ppo") > lines("vapo") > 5  # a file of its own; a class in it
    assert lines("dpop") == 5  # decorator, class, three fields
