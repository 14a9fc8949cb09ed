r"""Multiple choice: which labels, or whose text, a response settles on.

Read in this order, the last one counting within each step; a reasoning block is superseded by what follows it:

1. marks: `\boxed{B}`, `<answer>`, `####`, "the answer is B", "Antwort: B", "B is the correct answer"
2. a response, a last line or a first line that is nothing but labels: "B", "(b)", "A, C."
3. statements: "B is correct", "I would pick B", "Therefore, B."
4. a label at the head: "B. A small boat near the pier"
5. the only labels in brackets or bold, or after "option"
6. a hedged mark: "the answer might be B"
7. the text of an option, where options are given and the text of one only is there

A label is a capital that is no article, pronoun or beginning of a word; a small letter counts where it cannot be a word
("answer: b", "(d)"). What is named is compared as a set, so naming more than the gold is wrong: to name every choice
does not pay.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rlready.errors import UserError
from rlready.rewards.choice_labels import Labels, clean
from rlready.rewards.marks import Mark, before_new_question, marks, visible
from rlready.rewards.records import Record, field, option, prediction
from rlready.rewards.verdict import Graded, failed, no_answer, right, short, wrong
from rlready.scoring import RewardFn, answer_text, declare
from rlready.types import Score, Task, Trajectory

__all__ = ["choice", "grade_mcq_response", "verify_choice", "verify_choices"]

Options = Sequence[str] | Mapping[str, str]
_MAX_TAIL = 20_000


def verify_choices(
    response: str,
    gold: Any,
    *,
    options: Options | None = None,
    letters: str | None = None,
    cue_words: Sequence[str] = (),
) -> Graded:
    """Right where the response settles on the gold labels, all of them and no other.

    Args:
        response: all that the model wrote.
        gold: a label ("B", "(b)"), several ("A,C", ["A", "C"]), an index from 0, a label with its text ("B. Paris"),
            or an option's text.
        options: the options' texts, in order or by label; then an answer may give the text instead of the label.
        letters: the labels there are; default those of `options`, else A to J and the gold's own.
        cue_words: words for "answer" besides those of many languages.

    Raises:
        UserError: `options` or `letters` cannot be read.
    """
    labels = Labels.of(gold, options, letters)
    wanted, text = labels.gold(gold)
    if not wanted and not text:
        return failed(f"the gold choice {short(gold)} is none of {labels}")
    shown = before_new_question(visible(response), cue_words)
    if not shown:
        return no_answer("the response has no answer outside its thoughts" if response.strip() else "nothing is given")
    found = _Reader(labels, shown, cue_words, text if not wanted else "").read()
    if not wanted:
        return _by_text(found, text)
    if found.named:
        named = " and ".join(labels.sorted(found.named))
        why = f"it names {named} ({found.how}); the gold is {' and '.join(labels.sorted(wanted))}"
        if found.named == wanted:
            return right(f"it names {named} ({found.how})", parts=_parts(found.named, wanted))
        return wrong(why, parts=_parts(found.named, wanted))
    if text and found.said(text):
        return right(f"it gives the gold option's text {short(text)}", parts=_parts(wanted, wanted))
    if found.marked:
        return wrong(f"its answer {short(found.marked)} names no choice", parts=_parts(set(), wanted))
    return no_answer("it settles on no choice")


def _parts(named: set[str], wanted: set[str]) -> dict[str, float]:
    """Of several right choices: which share was named, and which share of the named is right."""
    if len(wanted) < 2:
        return {}
    hit = len(named & wanted)
    return {"recall": hit / len(wanted), "precision": hit / len(named) if named else 0.0}


def _by_text(found: _Found, text: str) -> Graded:
    if found.said(text):
        return right(f"it gives the gold option's text {short(text)}")
    if found.named or found.marked:
        return wrong(f"its answer {short(found.marked or ', '.join(sorted(found.named)))} is not {short(text)}")
    return no_answer(f"it does not give {short(text)} as its answer")


class _Found:
    """What a response settles on."""

    def __init__(self, named: set[str], how: str, marked: str = "", texts: Sequence[str] = ()) -> None:
        self.named, self.how, self.marked, self.texts = named, how, marked, tuple(texts)

    def said(self, text: str) -> bool:
        """Whether one of the places where an answer stands holds just this text."""
        return any(_plain(t) == _plain(text) for t in self.texts)


_AFFIRM = (
    r"(?:is|are|was|were|seems|seem|must[ \t]+be|would[ \t]+be|has[ \t]+to[ \t]+be|remains?)[ \t]+"
    r"(?:(?:also|clearly|definitely|indeed|likely|probably|thus|therefore|obviously|the|only|most|both|all|one|my|an?)"
    r"[ \t]+){0,4}"
)
_ANSWERS = re.compile(
    rf"\s*{_AFFIRM}(?:(?:correct|right|best|final|single|true|proper|appropriate)[ \t]+)*(?:answer|choice|option)s?\b",
    re.IGNORECASE,
)
_TRUE = re.compile(
    rf"(?:[.)]|(?<=\)))[ \t]+(?:correct|right)\b"
    rf"|\s*(?:{_AFFIRM}|:[ \t]*|[-–—][ \t]*)(?:correct|right|true|best|valid|accurate|appropriate|richtig|correcta?"
    rf"|верно|正确)\b(?![ \t]+(?:only|if|when|about|in[ \t]+saying|but|except|for)\b)",
    re.IGNORECASE,
)
_PICK = re.compile(
    r"(?:\bI(?:['’]d|['’]ll|[ \t]+would|[ \t]+will|[ \t]+must|[ \t]+should)?|\bwe(?:['’]d|['’]ll|[ \t]+would|[ \t]+will"
    r"|[ \t]+must|[ \t]+should)?|^|[.!\n]|\b(?:so|therefore|thus|hence|but|and),?|\blet(?:['’]s|[ \t]+me))[ \t]*"
    r"(?:say|choose|chose|picke?d?|select(?:ed)?|go(?:ing)?[ \t]+with|opt[ \t]+for|settled?[ \t]+on|vote[ \t]+for)"
    r"[ \t]*:?[ \t]*",
    re.IGNORECASE | re.MULTILINE,
)
_THUS = re.compile(
    r"\b(?:therefore|thus|hence|so|I[ \t]+(?:think|guess|believe)|maybe|perhaps|probably|definitely|it['’]s|it[ \t]+is"
    r"|it[ \t]+must[ \t]+be|that['’]s|must[ \t]+be|所以|因此|选|選)"
    r"[,:]?[ \t]*",
    re.IGNORECASE,
)
_WRONG = re.compile(
    r"\s*(?:is|are|was|were|cannot|can['’]?t|isn['’]?t|aren['’]?t|seems?|looks?|would|does|has|fails?|says?|means)\b"
    r"(?![ \t]+(?:correct|right|the[ \t]+(?:correct|right|best|answer)|true|best)\b)",
    re.IGNORECASE,
)
_NOT = re.compile(r"[\s*]*(?:not|nicht|no es|pas|не|不是)\b[ \t]*", re.IGNORECASE)
_BUT = re.compile(
    r"[,;]?\s*(?:but|rather|instead|sondern|sino|mais|а|而是)[ \t]+(?:rather[ \t]+|it[ \t]+is[ \t]+)?", re.I
)


class _Reader:
    """Reads one response; see the module for the order."""

    def __init__(self, labels: Labels, text: str, cue_words: Sequence[str], gold_text: str) -> None:
        self.labels, self.text, self.gold_text = labels, text, gold_text
        self.plain = clean(text)
        self.lines = [line for raw in self.plain.split("\n") if (line := raw.strip())]
        self.tail = self.plain[-_MAX_TAIL:]
        self.marks = marks(text, cue_words)

    def read(self) -> _Found:
        if not self.lines:
            return _Found(set(), "")
        marked = ""
        texts = [self.plain, *self.lines[-1:]]
        best: tuple[int, set[str]] | None = None
        for mark in reversed(self.marks):
            content = clean(mark.content)
            texts += _clauses(content)
            marked = marked or _first_line(content)
            if not mark.sure:
                continue
            named = self._marked(mark, content)
            if named:
                best = (mark.start, named)
                break
        stated = self._answers()
        if stated and (best is None or stated[0] > best[0]):
            return _Found(stated[1], "stated as the answer", marked, texts)
        if best:
            return _Found(best[1], "marked as the answer", marked, texts)
        steps = (
            (self._bare, "nothing else is said in that line"),
            (self._stated, "stated as correct"),
            (self._leading, "it stands at the head"),
            (self._bracketed, "the only ones in brackets or bold"),
            (self._hedged, "marked with a hedge"),
            (self._option_text, "the text of the option"),
        )
        for step, how in steps:
            if self.gold_text and step is not self._bare:
                break
            if marked and step in (self._leading, self._bare) and not self._only_labels():
                continue
            named = step()
            if named:
                return _Found(named, how, marked, texts)
        return _Found(set(), "", marked, texts)

    def _only_labels(self) -> bool:
        """Whether some line is nothing but labels; such a line says more than a cue without a label."""
        return any(self.labels.whole(line) for line in self.lines)

    def _marked(self, mark: Mark, content: str) -> set[str]:
        """The labels that a mark points at; empty where it points at none."""
        tight = mark.how != "cue"
        denied = _NOT.match(content)
        if denied:
            skipped = self.labels.head(content[denied.end() :])
            but = _BUT.match(content[denied.end() + skipped[1] :]) if skipped else None
            if skipped is None or but is None:
                return set()
            content = content[denied.end() + skipped[1] + but.end() :]
        listed = self._listed(content) if re.match(r"[ \t]*\n", content) else set()
        if len(listed) > 1:
            return listed
        found = self.labels.head(content)
        if found is None:
            return self._by_option(_clauses(content))
        named, end = found
        rest = content[end:]
        if _WRONG.match(rest):
            ordered = list(self.labels.order(content[:end]))
            if len(ordered) < 2:
                return set()
            plural = re.match(r"\s*are\b", rest)  # "the answer is A, C and D are wrong", "it is A, C, D is wrong"
            named = {ordered[0]} if plural else named - {ordered[-1]}
        if tight and rest.strip() and not re.match(r"\s*[.):,;\-–—(\n]", rest):
            return self._by_option(_clauses(content)) or (named if not self.labels.texts else set())
        other = self._by_option([rest.strip(" .):-–—\t\n")]) if len(named) == 1 else set()
        return named | other

    def _listed(self, content: str) -> set[str]:
        """Labels of lines that each begin with one: "Correct options:" and then "- A", "- C. text"."""
        named: set[str] = set()
        for line in content.strip().split("\n"):
            if not line.strip():
                continue
            line = re.sub(r"^[\s\-•*+]+", "", line)
            found = self.labels.head(line, leading=True)
            if found is None or _WRONG.match(line[found[1] :]):
                break
            named |= found[0]
        return named

    def _by_option(self, texts: Sequence[str]) -> set[str]:
        plain = {_plain(t) for t in texts if t}
        return {label for label, text in self.labels.texts.items() if _plain(text) in plain}

    def _answers(self) -> tuple[int, set[str]] | None:
        """The last "B is the correct answer"."""
        best = None
        offset = 0
        if len(self.text) > _MAX_TAIL:
            offset = len(self.text) - _MAX_TAIL
        for raw in self.text[offset:].split("\n"):
            line = clean(raw) if re.search("answer|choice|option", raw, re.IGNORECASE) else ""
            for start, end, named in self.labels.runs(line):
                if _ANSWERS.match(line[end : end + 120]) and not self._denied(line, start):
                    best = (offset + start, named)
            offset += len(raw) + 1
        return best

    @staticmethod
    def _denied(text: str, start: int) -> bool:
        before = text[max(0, start - 80) : start]
        sentence = re.split(r"[.!?\n]\s|\n", before)[-1]
        return bool(
            re.search(
                r"\b(?:not|none|n['’]t|if|whether|that|think|say|believe|why|neither|nor)\b[^,;]*$", sentence, re.I
            )
        )

    def _bare(self) -> set[str]:
        whole = self.labels.whole(self.plain)
        if whole:
            return whole
        option = self._by_option([self.plain])
        if option:
            return option
        for line in (self.lines[-1], self.lines[0], re.split(r"(?<=[.!?:])\s+", self.lines[-1][-300:])[-1]):
            named = self.labels.whole(line)
            if named:
                return named
        return self._by_option(self.lines[-1:])

    def _stated(self) -> set[str]:
        named: set[str] = set()
        for start, end, labels in self.labels.runs(self.tail):
            if _TRUE.match(self.tail, end, end + 100) and not self._denied(self.tail, start):
                named |= labels
        last: tuple[int, set[str]] = (-1, named)
        for pattern in (_PICK, _THUS):
            for match in pattern.finditer(self.tail):
                found = self.labels.head(self.tail[match.end() : match.end() + 200], closed=pattern is _THUS)
                if found and not _WRONG.match(self.tail[match.end() + found[1] :][:60]):
                    last = max(last, (match.end(), found[0]), key=lambda at: at[0])
        return last[1]

    def _leading(self) -> set[str]:
        heads: list[set[str]] = []
        for raw in self.lines[:100]:
            line = re.sub(r"^[\s\-•*+]+", "", raw)
            found = self.labels.head(line, leading=True)
            rest = line[found[1] :].strip(" .:)-–—") if found else ""
            heads.append(found[0] | self._by_option([rest]) if found else set())  # "A. " and the text of B names both
        named = [labels for labels in heads if labels]
        if len(named) > 1:  # options restated, or a list of right ones
            return set().union(*named) if all(heads) and self.labels.several else set()
        return heads[0]

    def _bracketed(self) -> set[str]:
        return self.labels.emphasised(self.text)

    def _hedged(self) -> set[str]:
        for mark in reversed(self.marks):
            if not mark.sure:
                named = self._marked(mark, clean(mark.content))
                if named:
                    return named
        return set()

    def _option_text(self) -> set[str]:
        """Options whose text is there, those aside that are part of a longer one that is there."""
        if not self.labels.texts or len(self.plain) > 20_000:
            return set()
        words = f" {_words(self.plain)} "
        there = {label: _words(text) for label, text in self.labels.texts.items() if f" {_words(text)} " in words}
        return {a for a, t in there.items() if t and not any(t != o and f" {t} " in f" {o} " for o in there.values())}


def _first_line(content: str) -> str:
    return content.strip().split("\n", 1)[0].strip()


def _clauses(content: str) -> list[str]:
    """The ways in which an answer may end: at the line's end, or at the end of its first sentence."""
    line = _first_line(content)
    head = re.split(r"(?<=\w)[.!?]\s|\s[(-–—]\s", line, maxsplit=1)[0]
    return [line, head]


def _plain(text: str) -> str:
    """Words only: case folded, punctuation at the edges and runs of blanks gone."""
    text = " ".join(clean(text).casefold().split())
    return re.sub(r"^[\s\"'.,;:!?()\[\]]+|[\s\"'.,;:!?()\[\]]+$", "", text)


def _words(text: str) -> str:
    return " ".join(re.sub(r"[.,;:!?\"'()\[\]]+(?=\s|$)|(?<!\S)[\"'(\[]+", " ", clean(text).casefold()).split())


def verify_choice(completion: str, gold: Any, letters: str = "ABCD") -> Score:
    """`verify_choices` among the given letters, as a `Score`; `gold` is a letter or an index from 0."""
    return verify_choices(completion, gold, letters=letters).as_score()


def choice(column: str = "answer", *, letters: str = "ABCD", options: str = "") -> RewardFn:
    """Reward the right choice; `task.data[column]` holds a label, several, an index from 0, or an option's text.

    Args:
        column: where the gold is.
        letters: the labels there are.
        options: the column that holds the options' texts (a list, or texts by label); "" for none.
    """

    def choice(task: Task, trajectory: Trajectory) -> Score:
        texts = task.data.get(options) if options else None
        try:
            graded = verify_choices(
                answer_text(trajectory), task.data.get(column), options=texts, letters=None if texts else letters
            )
        except UserError as error:
            return Score.failed(str(error))
        return graded.as_score()

    return declare(choice, name="choice", columns=[column, *([options] if options else [])])


def grade_mcq_response(record: Record) -> Graded:
    """A response against the right choice; fields `options` (texts), `letters` and `cue_words` as in the verifier."""
    return verify_choices(
        prediction(record),
        field(record, "reference"),
        options=option(record, "options", None, list, dict),
        letters=option(record, "letters", None, str),
        cue_words=option(record, "cue_words", (), list),
    )
