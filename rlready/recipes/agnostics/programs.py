"""How the families' programs are written in a language: read from `programs/<language>.toml`."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rlready.config import read_toml
from rlready.errors import UserError
from rlready.recipes.agnostics.families import FAMILIES, READS, Settings

FOLDER = Path(__file__).parent / "programs"
STYLES = (
    {"xs": "xs", "x": "x", "s": "s", "i": "i", "n": "n"},
    {"xs": "a", "x": "v", "s": "r", "i": "p", "n": "m"},
)
"""Names that a program's variables may have: a program keeps to one style."""

_PLACE = re.compile(r"@([a-z]+)")


@dataclass(frozen=True)
class Written:
    """The families in one language.

    Attributes:
        language: its name.
        read: lines that read each kind of input.
        body: lines that do the work, by family.
    """

    language: str
    read: Mapping[str, str]
    body: Mapping[str, str]

    def program(self, family: str, reads: str, settings: Settings, chance: random.Random | None = None) -> str:
        """A right program; its style of names is drawn, or the first."""
        filled = {key: str(value) for key, value in settings.items()}
        filled |= chance.choice(STYLES) if chance else STYLES[0]
        text = f"{self.read[reads].strip()}\n{self.body[family].strip()}"
        return _PLACE.sub(lambda place: filled[place.group(1)], text)


@cache
def written(language: str) -> Written:
    """The families in a language.

    Raises:
        UserError: there is no such file, or a family is missing.
    """
    path = FOLDER / f"{language}.toml"
    if not path.exists():
        known = ", ".join(sorted(p.stem for p in FOLDER.glob("*.toml")))
        raise UserError(f"There are no programs in {language} to begin with; there are some in {known}.")
    table = read_toml(path)
    for part, wanted in (("read", READS), ("body", [f.name for f in FAMILIES])):
        lacking = [name for name in wanted if name not in table.get(part, {})]
        if lacking:
            raise UserError(f"{path.name}: [{part}] lacks {', '.join(lacking)}.")
    return Written(language, table["read"], table["body"])
