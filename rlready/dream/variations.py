"""New tasks for a gym by variation in code: an instruction with one of its values replaced by another recorded one.

The values are those arguments of recorded calls that stand in the instruction as words: the order number, the name, the
date. A varied task has no recording, so its hidden world is imagined, once per seed and shared by the group. It can be
played in the dream only.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rlready.dream.taskgen import GENERATED
from rlready.seeds import derive, rng
from rlready.types import Group, Task

if TYPE_CHECKING:
    from rlready.dream.gym import Gym

_LEAST_LENGTH = 2


class Variations:
    """Varies the tasks of a gym, without repeats.

    Attributes:
        values: for each argument name the recorded values that stand in some instruction.
        counts: what became of the proposals.
    """

    def __init__(self, gym: Gym, *, seed: int = 0) -> None:
        """Read the slots off the gym's recordings."""
        self.gym, self.seed = gym, seed
        self.counts = {"proposed": 0, "unvaried": 0, "repeated": 0, "accepted": 0}
        self._asked = 0
        values: dict[str, set[str]] = defaultdict(set)
        self._known: set[str] = set()
        for id, episode in gym.library.episodes.items():
            self._known.add(episode.instruction)
            words = f" {episode.instruction} "
            for action, _ in gym.library.steps(id):
                for name, value in (action.arguments or {}).items():
                    if isinstance(value, str) and len(value) >= _LEAST_LENGTH and _word(value).search(words):
                        values[name].add(value)
        self.values = {name: tuple(sorted(found)) for name, found in sorted(values.items()) if len(found) > 1}

    def observe(self, groups: Sequence[Group]) -> None:
        """Nothing is learned from what was played; which tasks are uncertain is the curriculum's business."""

    async def propose(self, seeds: Sequence[Task], n: int) -> list[Task]:
        """Up to `n` new tasks, going round the seeds; fewer where a seed has nothing to vary or a proposal repeats."""
        out: list[Task] = []
        for i in range(n if seeds else 0):
            seed = seeds[i % len(seeds)]
            self._asked += 1
            self.counts["proposed"] += 1
            text = self._vary(str(seed.data.get("instruction", "")), derive(self.seed, "vary", self._asked))
            if text is None:
                self.counts["unvaried"] += 1
            elif text in self._known:
                self.counts["repeated"] += 1
            else:
                self._known.add(text)
                self.counts["accepted"] += 1
                made = self.gym.task(f"generated-{derive('generated', text):016x}", text)
                origin = str(seed.meta.get(GENERATED, seed.id))
                out.append(Task(made.prompt, made.data, {GENERATED: origin}, made.id))
        return out

    def metrics(self) -> dict[str, float]:
        """The counts so far."""
        return {f"taskgen/{name}": float(count) for name, count in self.counts.items()}

    def state_dict(self) -> dict[str, Any]:
        """JSON-ready state."""
        return {"asked": self._asked, "counts": dict(self.counts), "known": sorted(self._known)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state_dict`."""
        self._asked, self.counts, self._known = int(state["asked"]), dict(state["counts"]), set(state["known"])

    def _vary(self, instruction: str, noise: int) -> str | None:
        """The instruction with one value replaced; None where it holds none that has another."""
        slots = [
            (name, value)
            for name, values in self.values.items()
            for value in values
            if _word(value).search(f" {instruction} ")
        ]
        if not slots:
            return None
        chance = rng(noise)
        name, value = chance.choice(slots)
        other = chance.choice([v for v in self.values[name] if v != value])
        return _word(value).sub(lambda _: other, instruction)


def _word(value: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w-]){re.escape(value)}(?![\w-])")
