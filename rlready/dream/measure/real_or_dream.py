"""The pair test: can a simple lexical classifier tell a dreamt reply from a recorded one?"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rlready.dream.base import Reply
from rlready.dream.domain import Domain
from rlready.dream.measure.walk import steps_of
from rlready.dream.simulators.confidence import auroc
from rlready.dream.simulators.words import words
from rlready.experience.episode import LoggedEpisode
from rlready.seeds import derive


@dataclass(frozen=True)
class RealOrDream:
    """Can a lexical classifier tell dreamt replies from recorded ones?

    Attributes:
        pairs: dreamt and recorded replies to the same kind of action that were compared.
        auc: how often the dreamt one of a pair got the higher score; .5 is indistinguishable, 1 is always told.
            With few replies of few forms it may fall below .5, which tells no more.
        noise: standard error, from folds.
        by_kind: the same by kind of action.
        tells: words that give dreams away, and words that are missing in them.
    """

    pairs: int
    auc: float
    noise: float
    by_kind: dict[str, float]
    tells: tuple[str, ...] = ()

    @property
    def told(self) -> bool:
        """True where dreams can be told, beyond two standard errors."""
        return self.auc - 2 * self.noise > 0.5


def real_or_dream(
    dreamt: Sequence[LoggedEpisode], recorded: Sequence[LoggedEpisode], domain: Domain, *, folds: int = 5, seed: int = 0
) -> RealOrDream:
    """Naive Bayes over words and word pairs by kind of action, cross-validated with whole tasks left out.

    Replies are compared within their kind of action only, so the mix of actions tells nothing, and scores are means
    over features, so length alone tells little.

    Args:
        dreamt: dreamt episodes.
        recorded: recorded ones, held out from the dream.
        domain: reads the actions.
        folds: of the cross-validation; a task's replies, dreamt and recorded, are in one fold.
        seed: of the folds.
    """
    items = [
        (action.kind, derive(seed, "fold", e.task_id) % folds, dream, _features(reply))
        for dream, episodes in ((True, dreamt), (False, recorded))
        for e in episodes
        for action, reply in steps_of(domain, e)
        if reply.text.strip()
    ]
    cells: list[tuple[str, int, float, int]] = []  # kind, fold, AUC, pairs
    for kind in sorted({k for k, *_ in items}):
        mine = [item for item in items if item[0] == kind]
        for fold in sorted({at for _, at, *_ in mine}):
            weights = _weights([(dream, features) for _, at, dream, features in mine if at != fold])
            left_out = [(dream, _score(weights, features)) for _, at, dream, features in mine if at == fold]
            dreams = sum(dream for dream, _ in left_out)
            pairs = dreams * (len(left_out) - dreams)
            if pairs:
                cells.append((kind, fold, auroc([s for _, s in left_out], [d for d, _ in left_out]), pairs))
    each = [_pooled([c for c in cells if c[1] == fold]) for fold in sorted({c[1] for c in cells})]
    noise = math.sqrt(statistics.variance(each) / len(each)) if len(each) > 1 else math.nan
    by_kind = {kind: _pooled([c for c in cells if c[0] == kind]) for kind in sorted({c[0] for c in cells})}
    return RealOrDream(sum(c[3] for c in cells), _pooled(cells), noise, by_kind, _tells(items))


def _pooled(cells: Sequence[tuple[str, int, float, int]]) -> float:
    pairs = sum(n for *_, n in cells)
    return sum(auc * n for _, _, auc, n in cells) / pairs if pairs else math.nan


def _score(weights: Mapping[str, float], features: Sequence[str]) -> float:
    return sum(weights.get(f, 0.0) for f in features) / max(len(features), 1)


def _features(reply: Reply) -> list[str]:
    found = words(reply.text[:2000])
    return list(dict.fromkeys([*found, *(f"{a} {b}" for a, b in itertools.pairwise(found))]))


def _weights(train: Sequence[tuple[bool, Sequence[str]]]) -> dict[str, float]:
    """Log odds of each feature for dreams, from shares of replies that hold it, add one half."""
    count = {True: Counter[str](), False: Counter[str]()}
    n = {True: 0, False: 0}
    for dream, features in train:
        n[dream] += 1
        count[dream].update(features)
    if not n[True] or not n[False]:
        return {}
    return {
        f: math.log((count[True][f] + 0.5) / (n[True] + 1)) - math.log((count[False][f] + 0.5) / (n[False] + 1))
        for f in count[True].keys() | count[False].keys()
    }


def _tells(items: Iterable[tuple[str, int, bool, Sequence[str]]], most: int = 6) -> tuple[str, ...]:
    rows = list(items)
    weights = _weights([(dream, features) for *_, dream, features in rows])
    seen = Counter(f for *_, features in rows for f in features)
    strong = sorted(weights, key=lambda f: (-abs(weights[f]) * math.sqrt(seen[f]), f))[:most]
    return tuple(f"{'more' if weights[f] > 0 else 'less'}: {f}" for f in strong if abs(weights[f]) > 0.1)
