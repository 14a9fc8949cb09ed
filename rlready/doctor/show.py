"""The mask for people: one trajectory, with what is trained apart from what is context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from rlready.doctor.evidence import Evidence
from rlready.errors import UserError
from rlready.policy.base import Renderer
from rlready.rollout.compile import compile_trajectory
from rlready.types import Row, Trajectory

Kind = Literal["context", "trained", "sampled"]
_MOST = 240


@dataclass(frozen=True, slots=True)
class Piece:
    """Neighbouring tokens of one kind.

    Attributes:
        kind: "context", "trained", or "sampled" where a token was sampled and is not trained.
        text: their text.
        start: index of the first in its row.
        tokens: how many.
    """

    kind: Kind
    text: str
    start: int
    tokens: int

    def to_json(self) -> dict[str, Any]:
        """As a JSON-ready mapping."""
        return {"kind": self.kind, "text": self.text, "start": self.start, "tokens": self.tokens}


def mask_of(evidence: Evidence) -> tuple[int, list[list[Piece]]] | None:
    """The trajectory with the most turns: its index in the batch, and the pieces of each of its rows."""
    valid = evidence.valid
    if not valid:
        return None
    chosen = max(range(len(valid)), key=lambda i: (len(valid[i].turns), -i))
    rows = [row for row in evidence.rows if row.trajectory == chosen and row.turn is not None]
    shown = list({id(row): row for row in rows}.values()) or _compiled(valid[chosen])
    renderer = evidence.policy.renderer
    index = next(i for i, t in enumerate(evidence.trajectories) if t is valid[chosen])
    return index, [pieces(row, renderer) for row in shown]


def _compiled(trajectory: Trajectory) -> list[Row]:
    """Its rows as they would be compiled: one without advantage may never have been run."""
    try:
        return compile_trajectory(trajectory, streams=("nll",))
    except UserError:
        return []


def pieces(row: Row, renderer: Renderer) -> list[Piece]:
    """A row cut where trained and untrained tokens meet."""
    stream = next((s for s in ("policy", "nll") if s in row.weights), next(iter(row.weights), ""))
    weight = row.weights.get(stream, np.zeros(len(row), dtype=np.float32))
    said = np.zeros(len(row), dtype=bool) if row.turn is None else row.turn >= 0
    kinds: list[Kind] = [
        "trained" if w != 0 else "sampled" if s else "context" for w, s in zip(weight, said, strict=True)
    ]
    out: list[Piece] = []
    start = 0
    for t in range(1, len(kinds) + 1):
        if t == len(kinds) or kinds[t] != kinds[start]:
            out.append(Piece(kinds[start], _text(row.tokens[start:t], renderer), start, t - start))
            start = t
    return out


def _text(ids: Sequence[int] | Any, renderer: Renderer) -> str:
    """Text of some tokens, the dialect's own included, where the renderer's tokenizer tells them."""
    tokenizer = getattr(renderer, "tokenizer", None)
    decode = getattr(tokenizer, "decode", None)
    each = [int(i) for i in ids]
    try:
        return str(decode(each)) if decode is not None else renderer.decode(each)
    except Exception:  # another tokenizer's ids: shown as numbers
        return " ".join(map(str, each))


def shortened(text: str) -> str:
    """The middle of a long context left out."""
    return text if len(text) <= _MOST else f"{text[: _MOST // 2]} [...] {text[-_MOST // 2 :]}"
