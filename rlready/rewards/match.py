"""Does a predicted reply match the recorded one? A binary reward for models that stand in for an environment.

A similarity alone pays for wrong facts: "refund of 12" and "refund of 21" are nearly the same text. So what is
deterministic must be equal (fields, numbers, truth values, ids), and only free text is compared by similarity. The
reward is 1 at or above the threshold, else 0: a graded similarity would pay for the words that are always there.
(After RWML, arXiv 2602.05842, which binarises a similarity of embeddings; the exact checks are ours.)

What counts as deterministic:

    JSON        the same keys and lengths everywhere; numbers, booleans and null equal; a text of one word equal
                (an id, a status, a date), a longer one compared as free text
    free text   the same numbers and the same words that hold a digit (ids, times), each as often; the rest by
                similarity
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, Protocol

import numpy as np

from rlready.errors import UserError
from rlready.scoring import RewardFn, answer_text, declare
from rlready.types import FloatArray, Score, Task, Trajectory

By = Literal["cosine", "token_f1", "rouge_l"]
KINDS: tuple[By, ...] = ("cosine", "token_f1", "rouge_l")
_ID = re.compile(r"[^\s\"'()\[\]{},;:!?]*\d[^\s\"'()\[\]{},;:!?]*")
_WORD = re.compile(r"\w+|[^\w\s]")


class Encodes(Protocol):
    """Texts to vectors; `experience.retrieve.HashedEncoder` is one."""

    def encode(self, texts: Sequence[str]) -> FloatArray:
        """Vectors [len(texts), dim]."""
        ...


def cosine(a: str, b: str, encoder: Encodes | None = None) -> float:
    """Cosine of two texts' vectors, in [-1, 1]; two texts without any words are alike.

    Without an encoder the vectors count words and pairs of neighbouring words, of all words there are (what
    `HashedEncoder` hashes into a fixed number of counters).
    """
    if encoder is None:
        x, y = _grams(a), _grams(b)
        inner = float(sum(n * y[gram] for gram, n in x.items()))
        norms = math.sqrt(sum(n * n for n in x.values()) * sum(n * n for n in y.values()))
        empty = not x and not y
    else:
        u, v = np.asarray(encoder.encode([a, b]), dtype=np.float64)
        inner, norms = float(u @ v), float(np.linalg.norm(u) * np.linalg.norm(v))
        empty = not u.any() and not v.any()
    return 1.0 if empty else min(1.0, max(-1.0, inner / norms)) if norms else 0.0


def token_f1(a: str, b: str) -> float:
    """Harmonic mean of the shares of words of one text that the other has as well, order left aside."""
    x, y = Counter(_words(a)), Counter(_words(b))
    if not x or not y:
        return float(x == y)
    return 2 * (x & y).total() / (x.total() + y.total())


def rouge_l(a: str, b: str) -> float:
    """F1 of the longest common subsequence of words (Lin 2004, "ROUGE", sec. 3.1 with beta = 1)."""
    x, y = _words(a), _words(b)
    if not x or not y:
        return float(x == y)
    row = [0] * (len(y) + 1)
    for word in x:
        diagonal = 0
        for j, other in enumerate(y, 1):
            diagonal, row[j] = row[j], diagonal + 1 if word == other else max(row[j], row[j - 1])
    return 2 * row[-1] / (len(x) + len(y))


def verify_match(
    answer: str,
    gold: str,
    *,
    by: By = "cosine",
    threshold: float = 0.8,
    encoder: Encodes | None = None,
    exact: bool = True,
) -> Score:
    """Right where a predicted text matches the recorded one.

    Args:
        answer: the prediction.
        gold: the recording; "" is matched by "" alone.
        by: the similarity of free text.
        threshold: least similarity that is right.
        encoder: of "cosine".
        exact: whether deterministic content must be equal; without it the similarity of the whole texts decides.

    Returns:
        Parts: `similarity`, the least over all free texts (1 where there are none), and `exact`, 1 where all
        deterministic content is equal. No text where there should be one is no answer.
    """
    answer, gold = answer.strip(), gold.strip()
    if not answer and gold:
        return Score.no_answer(similarity=0.0, exact=0.0)

    def alike(a: str, b: str) -> float:
        if a == b:
            return 1.0
        return {"cosine": lambda: cosine(a, b, encoder), "token_f1": lambda: token_f1(a, b),
                "rouge_l": lambda: rouge_l(a, b)}[by]()  # fmt: skip

    if not exact:
        similarity, equal = alike(answer, gold), True
    else:
        wanted, given = _json(gold), _json(answer)
        if isinstance(wanted, (Mapping, list)):
            texts = list(_differences(given, wanted))
            equal = None not in texts
            similarity = min((alike(a, b) for a, b in filter(None, texts)), default=1.0)
        else:
            equal = _ids(answer) == _ids(gold) and not isinstance(given, (Mapping, list))
            similarity = alike(answer, gold)
    parts = {"similarity": similarity, "exact": float(equal)}
    return Score.right(**parts) if equal and similarity >= threshold else Score.wrong(**parts)


def match(
    column: str = "answer",
    *,
    by: By = "cosine",
    threshold: float = 0.8,
    encoder: Encodes | None = None,
    exact: bool = True,
    read: Callable[[str], str] | None = None,
) -> RewardFn:
    """Reward a reply that matches the recorded one in `task.data[column]`; see `verify_match`.

    Args:
        column: where the recorded reply is.
        by: the similarity of free text: "cosine", "token_f1" or "rouge_l".
        threshold: least similarity that is right.
        encoder: of "cosine"; default: exact counts of words and pairs of words.
        exact: whether deterministic content must be equal.
        read: takes marks and the like off both texts before they are compared; a ValueError from it on the prediction
            is no answer.

    Raises:
        UserError: there is no such similarity, or the threshold is not in (0, 1].
    """
    if by not in KINDS:
        raise UserError(f'rewards.match: by="{by}" is unknown; choose {", ".join(KINDS)}.')
    if not 0 < threshold <= 1:
        raise UserError(f"rewards.match: threshold={threshold} must be above 0 and at most 1.")

    def match(task: Task, trajectory: Trajectory) -> Score:
        gold = task.data.get(column)
        if not isinstance(gold, str):
            return Score.failed(f"the recorded reply {gold!r} is no text")
        answer = answer_text(trajectory)
        if read is not None:
            gold = read(gold)
            try:
                answer = read(answer)
            except ValueError:
                return Score.no_answer(similarity=0.0, exact=0.0)
        return verify_match(answer, gold, by=by, threshold=threshold, encoder=encoder, exact=exact)

    return declare(match, name="match", columns=[column])


def _differences(given: Any, wanted: Any) -> Iterator[tuple[str, str] | None]:
    """Pairs of free texts to compare, and None for deterministic content that differs."""
    if isinstance(wanted, Mapping):
        if not isinstance(given, Mapping) or given.keys() != wanted.keys():
            yield None
            return
        for key, value in wanted.items():
            yield from _differences(given[key], value)
    elif isinstance(wanted, list):
        if not isinstance(given, list) or len(given) != len(wanted):
            yield None
            return
        for a, b in zip(given, wanted, strict=True):
            yield from _differences(a, b)
    elif isinstance(wanted, str) and len(wanted.split()) > 1:
        if isinstance(given, str) and _ids(given) == _ids(wanted):
            yield given, wanted
        else:
            yield None
    elif isinstance(given, bool) or isinstance(wanted, bool):
        if given is not wanted:
            yield None
    elif given != wanted:
        yield None


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _ids(text: str) -> Counter[str]:
    """The words that hold a digit; a closing full stop belongs to the sentence."""
    return Counter(found.rstrip(".") for found in _ID.findall(text))


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def _grams(text: str) -> Counter[tuple[str, ...]]:
    words = _words(text)
    return Counter([*((w,) for w in words), *pairwise(words)])
