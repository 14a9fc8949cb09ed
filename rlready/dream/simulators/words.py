"""Texts as words, likeness of texts, and the vectors that retrieval compares.

A compared text has *parts* (what was done, what the situation is), each with its own weight: a long situation does not
drown a short argument. Vectors are whole numbers, so their dot products are exact in float32 and scores depend neither
on batching nor on the machine.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from rlready.experience.retrieve import Encoder, HashedEncoder
from rlready.types import FloatArray

PART = "\x1f"
_WORD = re.compile(r"\w+(?:[.:@'-]\w+)*")
_SCALE = 512.0
"""Length of a part of weight 1: 2 parts of weight 3 keep dot products below 2**24, where float32 is exact."""


def words(text: str) -> list[str]:
    """Lower-case words of a text; dates, times, decimals and addresses stay whole, punctuation goes."""
    return _WORD.findall(text.lower())


def flat(text: str, most: int = 4000) -> str:
    """The words of a text's first `most` characters, joined by blanks."""
    return " ".join(words(text[:most]))


def f1(a: str, b: str) -> float:
    """F1 of the words of two texts as multisets, in [0, 1]; 1 where both have none."""
    left, right = Counter(words(a)), Counter(words(b))
    total = left.total() + right.total()
    return 2.0 * (left & right).total() / total if total else 1.0


class PartEncoder:
    """Encodes texts made of parts; cosines are weighted means of the parts' cosines.

    With weights w, two texts have the cosine sum(w_i^2 cos_i) / sum(w_i^2); a part that is empty in both drops out.
    """

    def __init__(self, weights: Sequence[float], encoder: Encoder | None = None) -> None:
        """Choose the weights of the parts, and what encodes each."""
        self.weights = tuple(weights)
        self.encoder: Encoder = encoder or HashedEncoder(512)

    @property
    def dim(self) -> int:
        """Length of a vector."""
        return len(self.weights) * self.encoder.dim

    def encode(self, texts: Sequence[str]) -> FloatArray:
        """Vectors [len(texts), dim] of whole numbers.

        Raises:
            ValueError: a text has not as many parts as there are weights.
        """
        parts = [text.split(PART) for text in texts]
        if any(len(p) != len(self.weights) for p in parts):
            raise ValueError(f"Each text needs {len(self.weights)} parts.")
        out = np.zeros((len(texts), self.dim), dtype=np.float32)
        for i, weight in enumerate(self.weights):
            vectors = np.asarray(self.encoder.encode([p[i] for p in parts]), dtype=np.float64)
            norms = np.sqrt(np.einsum("nd,nd->n", vectors, vectors))[:, None]
            unit = np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0)
            out[:, i * self.encoder.dim : (i + 1) * self.encoder.dim] = np.rint(unit * weight * _SCALE)
        return out
