"""The papers and their recipes.

Every folder below `rlready/recipes` with a `paper.toml` is a paper. It *runs* when it also holds a `recipe.py` that
defines `small`; until then it is planned. Status is read from the code, never typed. Reading papers imports no
recipe.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, cast

from rlready.claims import Claim
from rlready.config import read_toml
from rlready.errors import UserError, did_you_mean

FOLDER = Path(__file__).parent
PRESETS = ("smoke", "small", "full")


@dataclass(frozen=True)
class Paper:
    """One paper, as its `paper.toml` tells.

    Attributes:
        number: its place in the project's list, from 1.
        slug: its name on the command line.
        name: its short name.
        title: its full title.
        year: of its first version on arXiv.
        arxiv: arXiv id.
        summary: one line of ours: what it is and gives.
        claims: what our recipe is judged by.
        hyperparameters: name, value and source of each.
        folder: where the recipe and its results live.
    """

    number: int
    slug: str
    name: str
    title: str
    year: int
    arxiv: str
    summary: str
    claims: tuple[Claim, ...] = ()
    hyperparameters: tuple[dict[str, Any], ...] = ()
    folder: Path = field(default=FOLDER, compare=False)

    @property
    def presets(self) -> tuple[str, ...]:
        """The presets that its recipe defines."""
        return _presets(self.folder / "recipe.py")

    @property
    def status(self) -> Literal["runs", "planned"]:
        """Whether there is a recipe to run."""
        return "runs" if "small" in self.presets else "planned"

    def to_json(self) -> dict[str, Any]:
        """As a JSON-ready mapping."""
        out = asdict(self) | {"status": self.status, "presets": list(self.presets)}
        del out["folder"]
        return out


@cache
def papers() -> tuple[Paper, ...]:
    """All papers by number.

    Raises:
        UserError: a `paper.toml` is malformed; file and key are named.
    """
    found = [_read(path) for path in FOLDER.glob("*/paper.toml")]
    return tuple(sorted(found, key=lambda p: p.number))


def paper(slug: str) -> Paper:
    """One paper by its slug, number or arXiv id.

    Raises:
        UserError: there is none; the nearest slugs are offered.
    """
    for p in papers():
        if slug in (p.slug, str(p.number), p.arxiv, p.slug.replace("-", "_")):
            return p
    raise did_you_mean("recipe", slug, [p.slug for p in papers()], see="rlready papers")


def search(query: str) -> list[Paper]:
    """Papers that share a word with the query, the best match first (BM25 over name, title and summary)."""
    import bm25s

    everything = papers()
    texts = [
        f"{p.slug} {p.slug.replace('-', ' ')} {p.name} {p.title} {p.summary} {p.year} {p.arxiv}" for p in everything
    ]
    index = bm25s.BM25()
    index.index(_stems(texts), show_progress=False)
    words = [known for w in _stems([query])[0] for known in _meant(w, index.vocab_dict)]
    if not words:
        return []
    ranks, scores = index.retrieve([words], k=len(everything), show_progress=False)
    return [everything[i] for i, s in zip(ranks[0], scores[0], strict=True) if s > 0]


def recipe(p: Paper) -> ModuleType:
    """A paper's recipe module.

    Raises:
        UserError: the paper is planned.
    """
    if p.status == "planned":
        running = ", ".join(q.slug for q in papers() if q.status == "runs") or "none yet"
        raise UserError(f"{p.slug} is planned and has no recipe yet. Recipes that run: {running}.")
    return importlib.import_module(f"rlready.recipes.{p.folder.name}.recipe")


def preset(p: Paper, name: str) -> Callable[..., Any]:
    """A recipe's function for a preset.

    Raises:
        UserError: the paper is planned, or has no such preset.
    """
    module = recipe(p)
    if name not in p.presets:
        raise did_you_mean("preset", name, p.presets)
    return cast("Callable[..., Any]", getattr(module, name))


def _meant(word: str, vocabulary: Iterable[str]) -> list[str]:
    """The word itself where a paper has it, else the words that it begins: "dream" finds DreamGym."""
    known = [w for w in vocabulary if w]
    return [word] if word in known else sorted(w for w in known if len(word) > 2 and w.startswith(word))


def _read(path: Path) -> Paper:
    table = read_toml(path)
    where = path.relative_to(FOLDER.parent.parent)
    claims = table.pop("claims", [])
    kinds = {"number": int, "slug": str, "name": str, "title": str, "year": int, "arxiv": str, "summary": str}
    for key, kind in kinds.items():
        if not isinstance(table.get(key), kind):
            raise UserError(f'{where}: "{key}" must be given, as {"a number" if kind is int else "text"}.')
    for key in table:
        if key not in (*kinds, "hyperparameters"):
            raise UserError(f"{where}: {did_you_mean('key', key, (*kinds, 'claims', 'hyperparameters'))}")
    if path.parent.name != table["slug"].replace("-", "_"):
        raise UserError(f"{where}: slug {table['slug']} does not fit its folder.")
    return Paper(
        **{k: table[k] for k in kinds},
        claims=tuple(Claim.from_toml(c, str(where)) for c in claims),
        hyperparameters=tuple(table.get("hyperparameters", ())),
        folder=path.parent,
    )


def _presets(path: Path) -> tuple[str, ...]:
    if not path.exists():
        return ()
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    names = {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
    return tuple(name for name in PRESETS if name in names)


def _stems(texts: Sequence[str]) -> list[list[str]]:
    """Words in lower case without their commonest endings, so that "puzzles" finds "puzzle"."""
    import re

    out = []
    for text in texts:
        words = re.findall(r"[a-z0-9.]+[a-z0-9]|[a-z0-9]", text.lower())
        out.append([re.sub(r"(?<=[a-z]{3})(ing|ers|er|es|s|ed|e)$", "", w) for w in words])
    return out
