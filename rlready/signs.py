"""Signs of trouble while training: what a step's numbers say, in words.

    signs = Signs(Thresholds(cut_off=0.2))     # one threshold changed; Signs(table=()) watches nothing
    for sentence in signs(metrics): ...

`train` watches with `Signs()` of its own. A sign *begins* once its number stood beyond its threshold for some steps in
a row and *ends* once it stood well inside again for as long; each is said once, so noise around a threshold does not
chatter. A sign has up to three levels: "look", "warn", "stop"; one that gets worse is said again. Nothing is halted by
signs alone: `StopAt` makes a stop rule of them. What stands is counted in the metrics (`signs`), what was said is kept
in `run.json`. A step that lacks a number is passed over. The signs themselves stand in `signs_table`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from rlready.signs_table import LEVELS, START, Level, LevelName, Memory, Metrics, Sign, Thresholds, usual

if TYPE_CHECKING:
    from rlready.run import Run

__all__ = ["Level", "Sign", "Signs", "StopAt", "Thresholds", "usual"]


@dataclass
class _Watch:
    """One sign's state: how long each level was crossed, how long it was calm, what stands."""

    sign: Sign
    held: list[int] = field(default_factory=list)
    calm: int = 0
    standing: int = -1
    first: list[float] = field(default_factory=list)
    memory: Memory = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.held = self.held or [0] * len(self.sign.levels)

    def see(self, metrics: Metrics) -> tuple[Literal["begins", "worse", "ends"], float, float] | None:
        """What changed with this step, its value and the start's."""
        value = self.sign.value(metrics, self.memory)
        if value is None:
            return None
        start, judged = math.nan, value
        if self.sign.relative:
            if len(self.first) < START:
                self.first.append(value)
                return None
            start = sum(self.first) / START
            if start <= 0:
                return None
            judged = value / start
        levels = self.sign.levels
        for i, level in enumerate(levels):
            self.held[i] = self.held[i] + 1 if level.crossed(judged) else 0
        reached = max((i for i, level in enumerate(levels) if self.held[i] >= level.patience), default=-1)
        self.calm = 0 if levels[0].crossed(judged, self.sign.slack) else self.calm + 1
        before = self.standing
        if reached > before:
            self.standing = reached
            return ("begins" if before < 0 else "worse"), value, start
        if before >= 0 and self.calm >= levels[0].patience:
            self.standing = -1
            return "ends", value, start
        return None


class _Missing(dict[str, float]):
    """Metrics in which what is missing reads 0."""

    def __missing__(self, key: str) -> float:
        return 0.0


class Signs:
    """Watches a run's metrics; see the module's text."""

    def __init__(self, thresholds: Thresholds | None = None, *, table: Sequence[Sign] | None = None) -> None:
        """Watch the usual signs with these thresholds, or those of a table."""
        chosen = usual(thresholds or Thresholds()) if table is None else table
        self._watches = {sign.name: _Watch(sign) for sign in chosen}
        self.history: list[dict[str, Any]] = []

    @property
    def standing(self) -> dict[str, LevelName]:
        """The signs that stand now, with their levels."""
        every = self._watches.items()
        return {name: watch.sign.levels[watch.standing].name for name, watch in every if watch.standing >= 0}

    def __call__(self, metrics: Metrics, step: int | None = None) -> list[str]:
        """Take a step's metrics in; the sentences on what begins, gets worse or ends with it."""
        said = []
        for name, watch in self._watches.items():
            change = watch.see(metrics)
            if change is None:
                continue
            what, value, start = change
            if what == "ends":
                level, sentence = "over", f"{name} is over: it reads {value:.3g}."
            else:
                level = watch.sign.levels[watch.standing].name
                text = watch.sign.says.format(value=value, start=start, m=_Missing(metrics))
                sentence = f"{name} ({level}): {text}. {watch.sign.mend}"
            self.history.append({"step": step, "sign": name, "what": what, "level": level, "said": sentence})
            said.append(sentence)
        return said

    def watch(self, run: Run, step: int, metrics: dict[str, float]) -> None:
        """Take a step in: say and note what changed, and add `signs`, the number that stands, to its metrics."""
        for sentence in (said := self(metrics, step)):
            run.say(f"Step {step}, sign of trouble: {sentence}")
        if said:
            others = [entry for entry in run.noted("signs") or [] if entry["stage"] != run.scope]
            run.note(signs=others + [{"stage": run.scope} | entry for entry in self.history])
        metrics["signs"] = float(len(self.standing))

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run must know; JSON-ready."""
        keys = ("held", "calm", "standing", "first", "memory")
        watches = {name: {key: getattr(watch, key) for key in keys} for name, watch in self._watches.items()}
        return {"watches": watches, "history": self.history}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state_dict`; a sign that the state does not know starts afresh."""
        for name, watch in self._watches.items():
            fresh = _Watch(watch.sign, **state["watches"].get(name, {}))
            self._watches[name] = fresh if len(fresh.held) == len(watch.sign.levels) else _Watch(watch.sign)
        self.history = [dict(entry) for entry in state["history"]]


class StopAt:
    """A stop rule: training halts where a sign reaches a level, such as a mismatch above 0.1 (verl).

    train(..., stop_rules=[StopAt()])
    train(..., stop_rules=[StopAt("warn", only=("mismatch", "ess"))])
    """

    def __init__(
        self, level: LevelName = "stop", *, only: Sequence[str] | None = None, signs: Signs | None = None
    ) -> None:
        """Take a level, names of signs (None: all), and signs of its own."""
        self.level, self.only, self.signs = level, only, signs or Signs()

    def __call__(self, metrics: Metrics) -> str | None:
        """The reason, or None."""
        said = self.signs(metrics)
        grave = {
            name
            for name, level in self.signs.standing.items()
            if LEVELS.index(level) >= LEVELS.index(self.level) and (self.only is None or name in self.only)
        }
        if not grave:
            return None
        found = [sentence for sentence in said if sentence.partition(" (")[0] in grave]
        return (found[0] if found else f"{', '.join(sorted(grave))} stands").rstrip(".")

    def state_dict(self) -> dict[str, Any]:
        """What the rule remembers."""
        return self.signs.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state_dict`."""
        self.signs.load_state_dict(state)
