"""Checks that need no training: the format gate and the length penalty against tables, and what packing saves.

The tables' right-hand sides were written down from the paper's rules, by hand.
"""

from __future__ import annotations

from rlready.rewards import ThinkFormat, length_penalty
from rlready.rollout.packing import in_order, pack, padding, similar
from rlready.seeds import np_rng

MATHS = ThinkFormat()
BRACKETS = ThinkFormat(open="[THINK]", close="[/THINK]")
CODE = ThinkFormat(answer="code")
OPENED = ThinkFormat(opened=True)

FORMATS: tuple[tuple[ThinkFormat, str, bool], ...] = (
    (MATHS, r"<think>one and one</think> \boxed{2}", True),
    (MATHS, "\n<think>one and one</think>\nIt is \\boxed{2}.", True),
    (MATHS, r"<think></think>\boxed{\frac{1}{2}}", True),
    (MATHS, r"<think>\boxed{3}?</think>\boxed{2}", True),
    (MATHS, r"Well. <think>one and one</think> \boxed{2}", False),
    (MATHS, r"one and one</think> \boxed{2}", False),
    (MATHS, r"<think>one and one \boxed{2}", False),
    (MATHS, r"<think>a</think><think>b</think> \boxed{2}", False),
    (MATHS, r"<think>a <think>b</think> \boxed{2}", False),
    (MATHS, r"<think>a</think> b</think> \boxed{2}", False),
    (MATHS, r"<think>It is \boxed{2}</think> 2", False),
    (MATHS, r"<think>a</think> \boxed{}", False),
    (MATHS, r"<think>a</think> \boxed{2", False),
    (MATHS, r"\boxed{2} <think>a</think>", False),
    (MATHS, "", False),
    (MATHS, r"[THINK]a[/THINK] \boxed{2}", False),
    (BRACKETS, r"[THINK]a[/THINK] \boxed{2}", True),
    (BRACKETS, r"<think>a</think> \boxed{2}", False),
    (OPENED, r"one and one</think> \boxed{2}", True),
    (OPENED, r"<think>one and one</think> \boxed{2}", False),
    (CODE, "<think>a</think>\n```python\nprint(2)\n```\n", True),
    (CODE, "<think>a</think>\n```c++\nint x;\n```", True),
    (CODE, "<think>a</think>\n```\nprint(2)\n```\n", False),
    (CODE, "<think>```python\nprint(2)\n```</think> done", False),
    (CODE, "<think>a</think>\n```python\nprint(2)\n", False),
)

LENGTHS: tuple[tuple[int, int, int, float], ...] = (
    # tokens, l_max, l_cache, penalty
    (0, 96, 16, 0.0),
    (79, 96, 16, 0.0),
    (80, 96, 16, 0.0),
    (81, 96, 16, -0.00625),
    (84, 96, 16, -0.025),
    (88, 96, 16, -0.05),
    (92, 96, 16, -0.075),
    (96, 96, 16, -0.1),
    (97, 96, 16, -0.1),
    (9999, 96, 16, -0.1),
    (20, 40, 40, -0.05),
    (1, 1, 1, -0.1),
)


def rows_right() -> tuple[int, int]:
    """How many rows of the two tables come out as written, and how many there are."""
    right = sum((not form.read(text).fault) == passes for form, text, passes in FORMATS)
    right += sum(abs(length_penalty(n, top, cache) - wanted) < 1e-12 for n, top, cache, wanted in LENGTHS)
    return right, len(FORMATS) + len(LENGTHS)


def long_tail(seed: int, n: int = 512) -> list[int]:
    """Lengths as reasoning has them: log-normal, median 300 tokens, the longest several times that (ours)."""
    drawn = np_rng(seed, "long tail").lognormal(mean=5.7, sigma=0.8, size=n)
    return [int(max(1, min(x, 8192))) for x in drawn]


def padding_shares(lengths: list[int], budget: int) -> dict[str, float]:
    """Share of padding by rule: packed micro-batches in order and greedily, padded ones in order and sorted.

    Args:
        lengths: tokens of each sequence.
        budget: tokens of a micro-batch.
    """
    return {
        "packed, in order": padding(lengths, in_order(lengths, budget), budget),
        "packed, greedy": padding(lengths, pack(lengths, budget), budget),
        "padded, in order": padding(lengths, in_order(lengths, budget, padded=True)),
        "padded, similar lengths": padding(lengths, similar(lengths, budget)),
    }
