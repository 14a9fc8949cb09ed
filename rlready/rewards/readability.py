"""How hard a text is to read: Flesch and its kin, from words, sentences, letters and syllables.

    flesch          206.835 - 1.015 W/S - 84.6 Y/W             Flesch 1948; higher is easier
    flesch_kincaid  0.39 W/S + 11.8 Y/W - 15.59                Kincaid et al. 1975; years at school, as those below
    fog             0.4 (W/S + 100 C/W)                        Gunning 1952; C: three syllables or more
    smog            1.0430 sqrt(30 C/S) + 3.1291               McLaughlin 1969
    coleman_liau    5.88 L/W - 29.6 S/W - 15.8                 Coleman and Liau 1975; L: letters
    ari             4.71 L/W + 0.5 W/S - 21.43                 Senter and Smith 1967; L: letters and digits

W words, S sentences, Y syllables. Flesch's formula has constants of its own in German (Amstad 1978), Spanish
(Fernández Huerta 1959), French (Kandel and Moles 1958), Italian (Franchina and Vacca 1986), Dutch (Douma 1960),
Portuguese (Martins et al. 1996) and Russian (Oborneva 2006); the others are of English.

Code, LaTeX and tags are left out. A text that is too short, or in another script than its language's, has no measure:
it is no answer, so that saying next to nothing is not paid as easy reading. What such formulas cannot see, they do not
reward rightly: full stops in odd places make any text easy. The parts hold what was counted, so that it is noticed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlready.errors import UserError, did_you_mean
from rlready.rewards.language import strip_marks
from rlready.rewards.marks import visible
from rlready.rewards.records import Record, field, option, prediction
from rlready.rewards.syllables import LANGUAGES, syllables
from rlready.rewards.verdict import Graded, failed, no_answer, right, short, wrong
from rlready.scoring import RewardFn, answer_text, declare
from rlready.types import Score, Task, Trajectory

__all__ = ["METRICS", "Counts", "count", "grade_readability", "measure", "readability", "verify_readability"]

METRICS = ("flesch", "flesch_kincaid", "fog", "smog", "coleman_liau", "ari")
_MAX_TEXT = 200_000

# Constants of Flesch's formula: base, words a sentence, syllables a word.
_FLESCH = {
    "en": (206.835, 1.015, 84.6),
    "de": (180.0, 1.0, 58.5),
    "es": (206.84, 1.02, 60.0),
    "fr": (207.0, 1.015, 73.6),
    "it": (217.0, 1.3, 60.0),
    "nl": (206.84, 0.93, 77.0),
    "pt": (248.835, 1.015, 84.6),
    "ru": (206.835, 1.3, 60.1),
}
_WORD = re.compile(r"[^\W_]+(?:['’][^\W\d_]+)*")
_ABBREVIATIONS = (  # end no sentence
    "mr mrs ms dr prof st jr sr vs etc fig eq vol pp al approx inc ltd jan feb mar apr jun jul aug sep sept oct nov "
    "dec bzw ca nr usw sra mme"
)
_SHORT = frozenset(_ABBREVIATIONS.split())
_END = re.compile(r"([.!?…]+)[\"'”’)\]]{0,4}(?=\s|$)")
_BEFORE = re.compile(r"[^\W_]*$")
_BREAK = re.compile(r"\n\s*\n|\n(?=[ \t]{0,40}(?:[-*•]|\d{1,4}[.)])\s)")
_MARKER = re.compile(r"[ \t]*(?:[-*•]|\d{1,4}[.)])\s")


@dataclass(frozen=True, slots=True)
class Counts:
    """What a text consists of.

    Attributes:
        words, sentences, syllables: their numbers.
        long_words: words of three syllables or more.
        letters, digits: in its words.
    """

    words: int
    sentences: int
    syllables: int
    long_words: int
    letters: int
    digits: int


def count(text: str, language: str = "en") -> Counts:
    """Count a text's words, sentences and syllables; numbers in digits are words of one syllable.

    Raises:
        UserError: the language is not known.
    """
    if language not in LANGUAGES:
        raise did_you_mean("language of readability", language, LANGUAGES)
    sentences = [_WORD.findall(s) for s in _sentences(text)]
    sentences = [s for s in sentences if s]
    words = [w for s in sentences for w in s]
    each = [1 if w[0].isdigit() else syllables(w, language) for w in words]
    letters = sum(c.isalpha() for w in words for c in w)
    digits = sum(c.isdigit() for w in words for c in w)
    return Counts(len(words), len(sentences), sum(each), sum(n > 2 for n in each), letters, digits)


def _sentences(text: str) -> list[str]:
    """Ends at . ! ? … before a blank, not after abbreviations and initials; at empty lines and list items."""
    out = []
    for block in _BREAK.split(text):
        marker = _MARKER.match(block)
        start = marker.end() if marker else 0
        for match in _END.finditer(block, start):
            word = _BEFORE.search(block[max(start, match.start() - 8) : match.start()]).group()  # type: ignore[union-attr]
            mark = match.group(1)
            abbreviated = mark == "." and (
                word.lower() in _SHORT or (len(word) == 1 and word.isalpha() and word != "I")
            )
            if abbreviated and block[match.end() :].strip():
                continue
            out.append(block[start : match.end()])
            start = match.end()
        out.append(block[start:])
    return out


def measure(counts: Counts, metric: str = "flesch_kincaid", language: str = "en") -> float:
    """A measure of readability from counts.

    Raises:
        UserError: the metric or the language is not known, the language has no such metric, or there are no words.
    """
    if metric not in METRICS:
        raise did_you_mean("measure of readability", metric, METRICS)
    if language not in _FLESCH:
        raise did_you_mean("language of readability", language, LANGUAGES)
    if language != "en" and metric != "flesch":
        raise UserError(f'{metric} is made for English; in the language "{language}" there is flesch.')
    if not counts.words:
        raise UserError("A text without words has no readability.")
    w, s, y, c = counts.words, counts.sentences, counts.syllables, counts.long_words
    if metric == "flesch":
        base, by_sentence, by_word = _FLESCH[language]
        return base - by_sentence * w / s - by_word * y / w
    if metric == "flesch_kincaid":
        return 0.39 * w / s + 11.8 * y / w - 15.59
    if metric == "fog":
        return 0.4 * (w / s + 100 * c / w)
    if metric == "smog":
        return 1.043 * math.sqrt(30 * c / s) + 3.1291
    if metric == "coleman_liau":
        return 5.88 * counts.letters / w - 29.6 * s / w - 15.8
    return 4.71 * (counts.letters + counts.digits) / w + 0.5 * w / s - 21.43


def verify_readability(
    text: str,
    wanted: Any,
    *,
    metric: str = "flesch_kincaid",
    language: str = "en",
    slack: float = 0.0,
    least: int = 20,
) -> Graded:
    """Right where a measure of readability is where it is wanted.

    Args:
        text: the text; thoughts in it are left out.
        wanted: a number, "at most" for school years and "at least" for flesch, or a pair (low, high), None for open.
        metric: one of `METRICS`.
        language: one of `syllables.LANGUAGES`; other than English it has flesch only.
        slack: over which distance outside the score falls from 1 to 0; the verdict is wrong there all the same.
        least: words that a text must have to be measured.

    Raises:
        UserError: a metric, language, slack or least that cannot be.
    """
    if not slack >= 0 or not math.isfinite(slack):
        raise UserError(f"slack is {slack}; it must be a number of at least 0.")
    if least < 1:
        raise UserError(f"least is {least}; it must be at least 1 word.")
    measure(Counts(1, 1, 1, 0, 1, 0), metric, language)
    bounds = _bounds(wanted, metric)
    if bounds is None:
        return failed(f"the wanted readability {short(wanted)} is no number, and no pair of a lower and a higher one")
    shown = strip_marks(visible(text), lines=True)[:_MAX_TEXT]
    counts = count(shown, language)
    if counts.words < least:
        return no_answer(f"{counts.words} words are too few to be measured, which takes {least}")
    if not _in_script(shown, language):
        return no_answer(f'the text is not in the script of the language "{language}"')
    value = measure(counts, metric, language)
    parts = {metric: value, "words": float(counts.words), "words_per_sentence": counts.words / counts.sentences}
    low, high = bounds
    away = max(low - value, value - high, 0.0)
    reason = f"{metric} is {value:.2f}, wanted {_said(low, high)}"
    if not away:
        return right(reason, parts=parts)
    return wrong(reason, max(0.0, 1.0 - away / slack) if slack else 0.0, parts)


def _bounds(wanted: Any, metric: str) -> tuple[float, float] | None:
    if _is_number(wanted):
        return (float(wanted), math.inf) if metric == "flesch" else (-math.inf, float(wanted))
    if not isinstance(wanted, (list, tuple)) or len(wanted) != 2 or wanted[0] is wanted[1] is None:
        return None
    if not all(bound is None or _is_number(bound) for bound in wanted):
        return None
    low = -math.inf if wanted[0] is None else float(wanted[0])
    high = math.inf if wanted[1] is None else float(wanted[1])
    return (low, high) if low <= high else None


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e6


def _said(low: float, high: float) -> str:
    if math.isinf(low):
        return f"at most {high:g}"
    return f"at least {low:g}" if math.isinf(high) else f"{low:g} to {high:g}"


def _in_script(text: str, language: str) -> bool:
    """Whether most letters are of the language's script."""
    letters = [c for c in text if c.isalpha()]
    low, high = (0x0400, 0x052F) if language == "ru" else (0x0041, 0x024F)
    return 2 * sum(low <= ord(c) <= high for c in letters) > len(letters)


def readability(
    column: str = "", *, wanted: Any = None, metric: str = "flesch_kincaid", language: str = "en", slack: float = 0.0
) -> RewardFn:
    """Reward a text that is as easy to read as is wanted, by `task.data[column]` or for all tasks by `wanted`.

    Raises:
        UserError: neither or both were given, `wanted` cannot be read, or as `verify_readability`.
    """
    if (wanted is None) == (not column):
        raise UserError("readability needs a column, or wanted=..., and not both.")
    if wanted is not None and _bounds(wanted, metric) is None:
        raise UserError(f"readability: wanted is {wanted!r}; it must be a number, or a pair such as (6, 8).")
    rules: Mapping[str, Any] = {"metric": metric, "language": language, "slack": slack}
    verify_readability("", 0, **rules)

    def readability(task: Task, trajectory: Trajectory) -> Score:
        asked = task.data.get(column) if column else wanted
        return verify_readability(answer_text(trajectory), asked, **rules).as_score()

    return declare(readability, name="readability", columns=[column] if column else [])


def grade_readability(record: Record) -> Graded:
    """Readability against the wanted one in `reference`; fields `metric`, `language`, `slack`, `least`."""
    return verify_readability(
        prediction(record),
        field(record, "reference"),
        metric=option(record, "metric", "flesch_kincaid", str),
        language=option(record, "language", "en", str),
        slack=option(record, "slack", 0.0, int, float),
        least=option(record, "least", 20, int),
    )
