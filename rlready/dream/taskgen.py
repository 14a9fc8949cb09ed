"""New tasks by variation: the experience model writes tasks like uncertain ones, with one constraint more.

    seeds = top_by_variance(8, original, pool)         # of `rlready.curriculum`
    pool.add(await generator.propose(seeds, 16))       # the pool drops what turns out to teach nothing

A new task brings its own hidden start (`Task.data["card"]`), so it needs no checker: the experience model judges it.
It can be played in the dream only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from rlready.dream.env import CARD, instruction_of
from rlready.dream.format import Unparsable
from rlready.dream.model import ExperienceModel
from rlready.experience.retrieve import Encoder, HashedEncoder
from rlready.seeds import derive
from rlready.types import FloatArray, Group, Message, Task

GENERATED = "generated"
"""Key of `Task.meta` that marks a generated task; its value is the id of the task it varies."""


class TaskGenerator:
    """Variations of seed tasks, without repeats.

    Attributes:
        model: writes them.
        near: a proposal whose words resemble an earlier task's with a cosine above this is a repeat; the same words
            in another order always are.
        seed: of the noise.
        counts: what became of the proposals.
    """

    def __init__(
        self,
        model: ExperienceModel,
        known: Iterable[tuple[str, Sequence[str]]] = (),
        *,
        near: float = 1.0,
        encoder: Encoder | None = None,
        seed: int = 0,
    ) -> None:
        """Start with the (instruction, card) pairs that are no news, such as those of the logs."""
        self.model = model
        self.near = near
        self.encoder: Encoder = encoder or HashedEncoder(ngrams=1)
        self.seed = seed
        self.counts = {"proposed": 0, "unparsable": 0, "repeated": 0, "accepted": 0}
        self._asked = 0
        self._worlds: dict[str, int] = {}
        self._known: dict[str, FloatArray] = {}
        for instruction, card in known:
            self._new(instruction, card)

    def observe(self, groups: Sequence[Group]) -> None:
        """Remember in which world each task was played: a variation starts from the world that was uncertain."""
        for group in groups:
            if group.trajectories:
                self._worlds[group.task.id] = group.trajectories[0].seed

    async def propose(self, seeds: Sequence[Task], n: int) -> list[Task]:
        """Write up to `n` new tasks, going round the seeds.

        Args:
            seeds: tasks that were played in the dream, most uncertain first.
            n: proposals to ask for; fewer come back where some repeat or cannot be read.
        """
        specs: list[tuple[Task, tuple[str, ...]]] = []
        for task in seeds:
            try:
                specs.append((task, await self._card(task)))
            except Unparsable:
                self.counts["unparsable"] += 1
        if not specs:
            return []
        asked = []
        for i in range(n):
            task, card = specs[i % len(specs)]
            self._asked += 1
            asked.append((task, instruction_of(task), card, derive(self.seed, "task", self._asked)))
        out = []
        for (task, *_), said in zip(asked, await self.model.vary([a[1:] for a in asked]), strict=True):
            self.counts["proposed"] += 1
            if said is None or not said[1]:
                self.counts["unparsable"] += 1
            elif not self._new(*said):
                self.counts["repeated"] += 1
            else:
                self.counts["accepted"] += 1
                meta = {GENERATED: task.meta.get(GENERATED, task.id)}
                out.append(Task((Message.user(said[0]),), {CARD: list(said[1])}, meta))
        return out

    def metrics(self) -> dict[str, float]:
        """The counts so far."""
        return {f"taskgen/{name}": float(count) for name, count in self.counts.items()}

    def state_dict(self) -> dict[str, Any]:
        """JSON-ready state."""
        return {"asked": self._asked, "counts": self.counts, "worlds": self._worlds, "known": list(self._known)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state_dict`."""
        self._asked = int(state["asked"])
        self.counts = dict(state["counts"])
        self._worlds = dict(state["worlds"])
        self._known = dict(zip(state["known"], self._vectors(state["known"]), strict=True))

    async def _card(self, task: Task) -> tuple[str, ...]:
        given = task.data.get(CARD)
        if given is not None:
            return tuple(given)
        return await self.model.draw_card(instruction_of(task), self._worlds.get(task.id, self.seed))

    def _new(self, instruction: str, card: Sequence[str]) -> bool:
        """Whether a task is no repeat; if so, it is known from now on."""
        text = f"{instruction} | {' '.join(sorted(card))}"
        if text in self._known:
            return False
        (vector,) = self._vectors([text])
        if self.near < 1 and self._known and float(np.max(np.stack(list(self._known.values())) @ vector)) > self.near:
            return False
        self._known[text] = vector
        return True

    def _vectors(self, texts: Sequence[str]) -> FloatArray:
        vectors = self.encoder.encode(texts)
        return np.asarray(
            vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12), dtype=np.float32
        )
