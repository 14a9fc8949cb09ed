"""Seeds are hashes, never sums.

`Random(seed + index)` makes the items of seed 42 and seed 43 the same list shifted by one, so that a test set leaks
into a training set. Every random draw in rlready takes its seed from `derive(run_seed, purpose, *index)` instead.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Hashable

import numpy as np


def derive(*parts: Hashable) -> int:
    """Hash any sequence of ints and strings to a seed in [0, 2**63); stable across processes and machines."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def rng(*parts: Hashable) -> random.Random:
    """A `random.Random` seeded by `derive(*parts)`."""
    return random.Random(derive(*parts))


def np_rng(*parts: Hashable) -> np.random.Generator:
    """A NumPy generator seeded by `derive(*parts)`."""
    return np.random.default_rng(derive(*parts))


def hashed_uniform(*parts: Hashable) -> float:
    """A number in [0, 1) that is a pure function of its arguments."""
    return derive(*parts) / 2**63
