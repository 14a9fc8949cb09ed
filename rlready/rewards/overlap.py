"""Overlap of a text with a reference: ROUGE-1, -2, -L and -Lsum, chrF and BLEU.

ROUGE (Lin 2004) is counted here, in words of every script (see `words`): the usual package's tokeniser keeps a to z and
digits only, so that an identical Greek, Hindi or Japanese text scores 0. There is no stemming. ROUGE-Lsum takes its
sentences line by line; a text without line breaks is divided at the ends of its sentences, since it would else silently
be ROUGE-L.

chrF and BLEU are sacrebleu's (Apache-2.0; `pip install 'rlready[text]'`), which are right for every script: chrF counts
characters (Popović 2015: order 6, beta 2), BLEU words by the tokeniser "13a", or "zh" where the
reference has Han characters, or "char" where it is in another script without blanks. Texts are brought to NFC first, so
that an accent typed in two characters is the same accent.

Scores are from 0 to 1. The verdict is right from a threshold on, by default 1: the same words.
"""

from __future__ import annotations

import functools
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rlready.errors import UserError
from rlready.rewards.marks import visible
from rlready.rewards.records import Record, field, option, prediction
from rlready.rewards.verdict import Graded, failed, no_answer, right, short, wrong
from rlready.rewards.words import is_unspaced, words
from rlready.scoring import RewardFn, answer_text, declare
from rlready.types import Score, Task, Trajectory

__all__ = ["METRICS", "bleu", "chrf", "grade_bleu", "grade_chrf", "grade_rouge", "overlap", "rouge", "verify_overlap"]

ROUGES = ("rouge1", "rouge2", "rougeL", "rougeLsum")
METRICS = (*ROUGES, "chrf", "bleu")
MAX_TEXT = 200_000
_MAX_BITS = 1 << 29  # of a table of the longest common subsequence that is kept for reading it backwards
_ENDS = re.compile(r"(?<=[.!?])\s+|(?<=[。！？।])")


def rouge(text: str, reference: str, kinds: Sequence[str] = ROUGES) -> dict[str, tuple[float, float, float]]:
    """ROUGE as (F1, precision, recall) by kind; all 0 where one of the texts has no words.

    Raises:
        UserError: a kind is not known.
        OverflowError: ROUGE-Lsum of sentences that are too long to be compared.
    """
    for kind in kinds:
        if kind not in ROUGES:
            raise UserError(f"{kind!r} is no kind of ROUGE; these are {', '.join(ROUGES)}.")
    given, wanted = words(text), words(reference)
    if not given or not wanted:
        return dict.fromkeys(kinds, (0.0, 0.0, 0.0))
    out = {}
    for kind in kinds:
        if kind == "rougeL":
            hits = _lcs_length(wanted, given)
            out[kind] = _f1(hits, len(given), len(wanted))
        elif kind == "rougeLsum":
            out[kind] = _f1(_union_lcs(_sentences(reference), _sentences(text)), len(given), len(wanted))
        else:
            out[kind] = _ngrams(given, wanted, int(kind[-1]))
    return out


def _f1(hits: int, given: int, wanted: int) -> tuple[float, float, float]:
    if not hits:
        return 0.0, 0.0, 0.0
    precision, recall = hits / given, hits / wanted
    return 2 * precision * recall / (precision + recall), precision, recall


def _ngrams(given: list[str], wanted: list[str], n: int) -> tuple[float, float, float]:
    if len(wanted) < n and given == wanted:  # nothing to count, yet the same: 1, where 0 over 0 is often read as 0
        return 1.0, 1.0, 1.0
    one, other = (Counter(zip(*(w[i:] for i in range(n)), strict=False)) for w in (given, wanted))
    return _f1(sum((one & other).values()), one.total(), other.total())


def _rows(wanted: list[str], given: list[str]) -> Iterator[int]:
    """The table of the longest common subsequence, a row for each wanted word, in bits.

    Bit j of row i is 0 where the value grows from column j to j + 1 (Hyyrö 2004), so a row is one integer.
    """
    places: dict[str, int] = {}
    for j, word in enumerate(given):
        places[word] = places.get(word, 0) | 1 << j
    row = full = (1 << len(given)) - 1
    for word in wanted:
        hit = row & places.get(word, 0)
        row = ((row + hit) | (row - hit)) & full
        yield row


def _lcs_length(wanted: list[str], given: list[str]) -> int:
    row = (1 << len(given)) - 1
    for row in _rows(wanted, given):  # noqa: B007  (the last one is wanted)
        pass
    return len(given) - row.bit_count()


def _lcs_places(wanted: list[str], given: list[str]) -> set[int]:
    """Places in `wanted` of one longest common subsequence: the one found from the ends, moving up on ties."""
    if not wanted or not given:
        return set()
    if len(wanted) * len(given) > _MAX_BITS:
        raise OverflowError(f"sentences of {len(wanted):,} and {len(given):,} words are too long to be compared")
    rows = [(1 << len(given)) - 1, *_rows(wanted, given)]
    out: set[int] = set()
    i, j = len(wanted), len(given)
    here = len(given) - rows[i].bit_count()  # the value at (i, j)
    while i and j and here:
        grows = not rows[i] >> (j - 1) & 1  # from (i, j - 1) to (i, j)
        left = here - grows
        up = here if _same_prefix(rows[i], rows[i - 1], j) else j - (rows[i - 1] & ((1 << j) - 1)).bit_count()
        if wanted[i - 1] == given[j - 1]:
            out.add(i - 1)
            here, i, j = here - 1, i - 1, j - 1
        elif left > up:
            here, j = left, j - 1
        else:
            here, i = up, i - 1
    return out


def _same_prefix(one: int, other: int, bits: int) -> bool:
    difference = one ^ other
    return not difference or (difference & -difference).bit_length() > bits


def _sentences(text: str) -> list[list[str]]:
    parts = text.split("\n") if "\n" in text.strip() else _ENDS.split(text)
    return [w for part in parts if (w := words(part))]


def _union_lcs(wanted: list[list[str]], given: list[list[str]]) -> int:
    """Words of the reference's sentences that are in the union of their common subsequences with all sentences."""
    left = Counter(w for sentence in given for w in sentence)
    right_left = Counter(w for sentence in wanted for w in sentence)
    hits = 0
    for sentence in wanted:
        union: set[int] = set()
        for other in given:
            union |= _lcs_places(sentence, other)
        for place in sorted(union):
            word = sentence[place]
            if left[word] > 0 and right_left[word] > 0:
                hits += 1
                left[word] -= 1
                right_left[word] -= 1
    return hits


def chrf(text: str, reference: str, *, word_order: int = 0) -> float:
    """The chrF of a text, 0 to 1; with `word_order=2` chrF++.

    Raises:
        UserError: sacrebleu is not installed.
    """
    metric = _sacrebleu().CHRF(word_order=word_order)
    return float(metric.sentence_score(_nfc(text), [_nfc(reference)]).score) / 100


def bleu(text: str, reference: str) -> float:
    """Smoothed BLEU of one text, 0 to 1, with the orders that it is long enough for.

    Raises:
        UserError: sacrebleu is not installed.
    """
    metric = _bleu(_tokenizer(reference))
    return float(metric.sentence_score(_nfc(text), [_nfc(reference)]).score) / 100


@functools.lru_cache(maxsize=8)
def _bleu(tokenizer: str) -> Any:
    return _sacrebleu().BLEU(tokenize=tokenizer, effective_order=True)


def _tokenizer(reference: str) -> str:
    unspaced = [c for c in reference if is_unspaced(c)]
    if not unspaced:
        return "13a"
    han = all("CJK" in unicodedata.name(c, "") or not c.isalpha() for c in unspaced)
    return "zh" if han else "char"


def _sacrebleu() -> Any:
    try:
        import sacrebleu.metrics as metrics
    except ImportError:
        raise UserError("chrF and BLEU need sacrebleu: pip install 'rlready[text]'") from None
    return metrics


def _nfc(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def verify_overlap(text: str, reference: Any, *, metric: str = "rougeL", threshold: float = 1.0) -> Graded:
    """The overlap of a text with a reference, or the best over a list of them; right from `threshold` on.

    Args:
        text: the text; thoughts in it are left out.
        reference: a text, or several.
        metric: one of `METRICS`.
        threshold: from which score on the verdict is right.

    Raises:
        UserError: the metric is not known, the threshold not above 0 and at most 1, or sacrebleu is not installed.
    """
    if metric not in METRICS:
        raise UserError(f"metric is {metric!r}; it must be one of {', '.join(METRICS)}.")
    if not 0 < threshold <= 1:
        raise UserError(f"threshold is {threshold}; it must be above 0 and at most 1.")
    references = list(reference) if isinstance(reference, (list, tuple)) else [reference]
    for one in references or [None]:
        if not isinstance(one, str) or not words(one):
            return failed(f"the reference {short(one)} has no words")
        if len(one) > MAX_TEXT:
            return failed(f"the reference has {len(one):,} characters, more than the {MAX_TEXT:,} that are compared")
    shown = visible(text)
    if not words(shown):
        return no_answer("there are no words outside the thoughts" if words(text) else "the text has no words")
    try:
        value, parts = max((_measure(shown, one, metric) for one in references), key=lambda found: found[0])
    except OverflowError as error:
        return failed(str(error))
    reason = f"{metric} {value:.4f}, {'at least' if value >= threshold - 1e-9 else 'below'} {threshold:g}"
    return (right if value >= threshold - 1e-9 else wrong)(reason, value, parts)


def _measure(text: str, reference: str, metric: str) -> tuple[float, Mapping[str, float]]:
    if metric in ("chrf", "bleu"):
        value = chrf(text, reference) if metric == "chrf" else bleu(text, reference)
        value = 1.0 if math.isclose(value, 1.0, abs_tol=1e-9) else value
        return value, {metric: value}
    kinds = [metric, *(k for k in ROUGES if k not in (metric, "rougeLsum"))]
    found = rouge(text, reference, kinds)
    return found[metric][0], {kind: found[kind][0] for kind in ROUGES if kind in found}


def overlap(column: str = "answer", *, metric: str = "rougeL", threshold: float = 1.0) -> RewardFn:
    """Reward the overlap with the text, or the best of the texts, in `task.data[column]`; see `verify_overlap`.

    Raises:
        UserError: as `verify_overlap`.
    """
    verify_overlap("a", "a", metric=metric, threshold=threshold)

    def overlap(task: Task, trajectory: Trajectory) -> Score:
        text = answer_text(trajectory)
        return verify_overlap(text, task.data.get(column), metric=metric, threshold=threshold).as_score()

    return declare(overlap, name="overlap", columns=[column])


def _grade(record: Record, metric: str) -> Graded:
    threshold = option(record, "threshold", 1.0, int, float)
    return verify_overlap(prediction(record), field(record, "reference"), metric=metric, threshold=threshold)


def grade_rouge(record: Record) -> Graded:
    """ROUGE; fields `metric` ("rouge1", "rouge2", "rougeL", the default, or "rougeLsum") and `threshold` (1).

    Raises:
        UserError: the metric is not known.
    """
    metric = option(record, "metric", "rougeL", str)
    if metric not in ROUGES:
        raise UserError(f'"metric" is {metric!r}; it must be one of {", ".join(ROUGES)}')
    return _grade(record, metric)


def grade_chrf(record: Record) -> Graded:
    """The chrF score; field `threshold` (default 1)."""
    return _grade(record, "chrf")


def grade_bleu(record: Record) -> Graded:
    """Sentence BLEU; field `threshold` (default 1)."""
    return _grade(record, "bleu")
