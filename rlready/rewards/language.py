"""In which language is a text, and do question, thoughts and answer speak one?

`verify_language` asks the first. For the second, LaTeX, code and tags are taken out, then each of the three texts is
classified; where all three agree the reward is 1 (+0.1 by its weight in Magistral, arXiv 2506.10910). A text with very
few letters left cannot be told: then there is no bonus and no penalty, and the part `short` says so, so that a policy
that learns to say next to nothing is seen.

The classifier is any function from a text to a language's code. `Classifier`, the default, is `py3langid` (BSD; its
model of 139 languages is within the package, 4.6 MB), limited to the languages at hand: short texts are told apart far
better among four languages than among all.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

from rlready.errors import UserError
from rlready.rewards.format import ThinkFormat
from rlready.rewards.marks import visible
from rlready.rewards.verdict import Graded, failed, no_answer, right, short, wrong
from rlready.rewards.words import is_unspaced
from rlready.scoring import RewardFn, answer_text, declare
from rlready.types import Score, Task, Trajectory, Verdict

Classify = Callable[[str], str]
_MAX_TOLD = 20_000  # characters; more tell nothing more

_CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", re.DOTALL)
_MATHS = re.compile(
    r"\$\$.*?\$\$|(?<![\\\w])\$(?=\S)[^$\n]*?(?<=\S)\$(?!\d)|\\\(.*?\\\)|\\\[.*?\\\]"
    r"|\\begin\{(\w+\*?)\}.*?\\end\{\1\}",
    re.DOTALL,
)
_COMMAND = re.compile(r"\\[A-Za-z]+\*?(?:\s*\[[^\]]*\])?(?:\s*\{(?:[^{}]|\{[^{}]*\})*\})*")
_TAG = re.compile(r"</?[A-Za-z][\w-]*>|\[/?[A-Z_]+\]")


def strip_marks(text: str, *, lines: bool = False) -> str:
    """The words of a text: fenced and inline code, LaTeX and tags taken out, blank space joined unless `lines` stay."""
    for pattern in (_CODE, _MATHS, _COMMAND, _TAG):
        text = pattern.sub(" ", text)
    return text if lines else " ".join(text.split())


def letters(text: str) -> int:
    """Number of letters, of any script."""
    return sum(c.isalpha() for c in text)


class Classifier:
    """`py3langid`, limited to some languages or (None) to none.

    Loads its model when it is first asked; answers are remembered.

    Attributes:
        languages: the codes (ISO 639-1) it chooses among; empty for all that the model knows.
    """

    def __init__(self, languages: Sequence[str] | None) -> None:
        """Choose the languages.

        Raises:
            UserError: there are fewer than two.
        """
        if languages is not None and len(set(languages)) < 2:
            raise UserError(f"A language classifier needs at least two languages, not {list(languages)}.")
        self.languages = tuple(languages or ())
        self._model: Any = None
        self._known = functools.lru_cache(maxsize=100_000)(self._ask)

    def __call__(self, text: str) -> str:
        """The code of the likeliest language.

        Raises:
            UserError: `py3langid` is not installed, or does not know a language.
        """
        return self._known(text)

    def _ask(self, text: str) -> str:
        if self._model is None:
            self._model = self._load()
        return str(self._model.classify(text)[0])

    def knows(self, code: str) -> bool:
        """Whether a language is among those that are told apart.

        Raises:
            UserError: as when a text is classified.
        """
        if self._model is None:
            self._model = self._load()
        return code in self._model.nb_classes and (not self.languages or code in self.languages)

    def _load(self) -> Any:
        try:
            from py3langid.langid import MODEL_FILE, LanguageIdentifier
        except ImportError:
            raise UserError(
                "Telling languages apart needs py3langid: pip install 'rlready[language]', or pass classify=..."
            ) from None
        model = LanguageIdentifier.from_model_file(MODEL_FILE)
        unknown = sorted(set(self.languages) - set(model.nb_classes))
        if unknown:
            raise UserError(f'py3langid knows no language "{unknown[0]}"; give codes such as en, fr, de, es.')
        if self.languages:
            model.set_languages(self.languages)
        return model


def same_language(
    languages: Sequence[str],
    form: ThinkFormat | None = None,
    *,
    least: int = 12,
    classify: Classify | None = None,
) -> RewardFn:
    """A reward of 1 where the task's prompt, the thoughts and the answer are in one language, else 0.

    Args:
        languages: the codes that texts are told apart among.
        form: where thoughts and answer are found.
        least: letters that each text must have left to be told; with fewer there is no bonus.
        classify: text to code, in place of `Classifier(languages)`.

    Returns:
        A reward with the parts `same` (1 or 0; left out where a text is too short, or the form is broken) and `short`
        (1 where a text is too short). It judges no answer: name another part as the `verdict` of `compose`.

    Raises:
        UserError: fewer than two languages were given, or `least` is negative.
    """
    form = form or ThinkFormat()
    tell = classify or Classifier(languages)
    if least < 0:
        raise UserError(f"same_language: least is {least}; it must be at least 0.")

    def same_language(task: Task, trajectory: Trajectory) -> Score:
        read = form.read(answer_text(trajectory))
        if read.fault:
            return Score.no_answer()
        asked = " ".join(m.text for m in task.prompt if m.role == "user")
        texts = [strip_marks(text) for text in (asked, read.thoughts, read.visible)]
        if any(letters(text) < least for text in texts):
            return Score.no_answer(short=1.0)
        same = float(len({tell(text) for text in texts}) == 1)
        return Score(same, Verdict.RIGHT if same else Verdict.WRONG, {"same": same, "short": 0.0})

    return declare(same_language, name="same_language")


@functools.lru_cache(maxsize=16)
def _classifier(among: tuple[str, ...] | None) -> Classifier:
    return Classifier(among)


def verify_language(
    text: str, wanted: str | Sequence[str], *, among: Sequence[str] | None = None, least: int = 12
) -> Graded:
    """Right where a text is in the wanted language, or in one of several.

    Thoughts, code, LaTeX and tags are left out. Give `among` where it is known which languages there may be: short
    texts are told apart far better among a few.

    Args:
        text: the text.
        wanted: a code such as "de" (ISO 639-1), or several.
        among: the codes that are told apart; None for the 139 of py3langid.
        least: letters that must be left; a character of a script without blanks counts as three.

    Raises:
        UserError: `among` has fewer than two codes or one that py3langid does not know, or it is not installed.
    """
    codes = [wanted] if isinstance(wanted, str) else list(wanted) if isinstance(wanted, (list, tuple)) else []
    tell = _classifier(None if among is None else tuple(among))
    if not codes or not all(isinstance(code, str) and tell.knows(code) for code in codes):
        return failed(f"the wanted language {short(wanted)} is none that is told apart; give codes such as en, fr, zh")
    words = strip_marks(visible(text))
    if sum(3 if is_unspaced(c) else 1 for c in words if c.isalpha()) < least:
        return no_answer("there are too few letters to tell a language")
    found = tell(words[:_MAX_TOLD])
    if found in codes:
        return right(f"the text is in the language {found}")
    return wrong(f"the text is in the language {found}, not {' or '.join(codes)}")


def in_language(column: str = "language", *, among: Sequence[str] | None = None, least: int = 12) -> RewardFn:
    """Reward an answer in the language whose code is `task.data[column]`; see `verify_language`.

    Raises:
        UserError: fewer than two languages were given.
    """
    if among is not None:
        Classifier(among)

    def in_language(task: Task, trajectory: Trajectory) -> Score:
        wanted = task.data.get(column)
        return verify_language(answer_text(trajectory), wanted or "", among=among, least=least).as_score()

    return declare(in_language, name="in_language", columns=[column])
