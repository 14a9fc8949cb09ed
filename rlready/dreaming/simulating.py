"""Simulators by one string, for fitting: what can be asked for, what is trained, and how it is loaded."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rlready.dream.domain import Domain
from rlready.dream.library import Library
from rlready.dream.simulators import load_simulator
from rlready.errors import UserError, did_you_mean
from rlready.experience.episode import LoggedEpisode
from rlready.run import Run

if TYPE_CHECKING:
    from rlready.dream.simulators.fitting import Fitting, TextConfig
    from rlready.dreaming.options import FitOptions

F = TypeVar("F", bound="Fitting")

PLAIN = ("retrieval", "tiny", "auto")
_SAVE_SECONDS = 20.0
"""A kill costs at most about this much training."""

_WHY = {
    "retrieval": "it needs no training, and recordings alone decide what it knows",
    "tiny": "as was asked for: a small transformer, trained on the recordings",
}


def check(spec: str) -> None:
    """Refuse what names no simulator.

    Raises:
        UserError: it names none.
    """
    if spec in PLAIN or (spec.startswith("hf:") and len(spec) > 3):
        return
    if spec.startswith(("http://", "https://")):
        if "#" not in spec:
            raise UserError(
                f"The simulator {spec} names no model. Write URL#MODEL, such as {spec.rstrip('/')}#my-model."
            )
        return
    raise did_you_mean("simulator", spec, [*PLAIN, "hf:NAME", "http://HOST/v1#MODEL"])


def train(
    options: FitOptions, run: Run, library: Library, domain: Domain, dev: Sequence[LoggedEpisode], folder: Path
) -> tuple[str, str]:
    """Train what learns, inside a stage of a run, into `folder/model`.

    Args:
        options: name the simulator.
        run: its present stage keeps the checkpoints.
        library: what is learned from.
        domain: its form.
        dev: held-out episodes by which "auto" chooses.
        folder: the stage's.

    Returns:
        The simulator's string, and why it was chosen.
    """
    if options.templates:
        shutil.copytree(options.templates, folder / "templates")
    spec = options.simulator
    if spec == "tiny":
        fit_tiny(run, library, domain, folder / "model", options.steps)
    elif spec.startswith("hf:"):
        tune(run, spec, library, domain, folder / "model", options.steps)
        return spec, "as was asked for: an adapter, trained on the recordings"
    elif spec == "auto":
        return _choose(options, run, library, domain, dev, folder)
    return spec, _WHY.get(spec, "as was asked for")


def fit_tiny(run: Run, library: Library, domain: Domain, folder: Path, steps: int) -> None:
    """Train the small transformer with checkpoints, progress and time left; Ctrl-C saves.

    Args:
        run: its present stage keeps the checkpoints.
        library: what is learned from.
        domain: its form.
        folder: where the model goes.
        steps: at most so many; 0 chooses by the amount of text.
    """
    from rlready.dream.simulators.fitting import Fitting, TextConfig

    config = _limited(TextConfig(seed=run.seed), steps)
    _train(run, lambda state: Fitting(library, domain, config, state)).finish().save(folder)


def tune(run: Run, spec: str, library: Library, domain: Domain, folder: Path, steps: int) -> None:
    """Give a Hugging Face model an adapter that is trained on the recordings; as `fit_tiny`.

    Args:
        run: its present stage keeps the checkpoints.
        spec: "hf:NAME".
        library: what is learned from.
        domain: its form.
        folder: where the adapter goes.
        steps: at most so many; 0 chooses by the amount of text.

    Raises:
        UserError: there is no such model, or the extra is not installed.
    """
    from rlready.dream.simulators.tuning import TUNING, Tuning
    from rlready.policy.hf import HFPolicy, LoraSettings

    config = _limited(replace(TUNING, seed=run.seed), steps)
    policy = HFPolicy.load(spec[3:], lora=LoraSettings(), seed=run.seed, exact=True)
    tuning = _train(run, lambda state: Tuning(library, domain, policy, name=spec, config=config, state=state))
    tuning.finish()
    tuning.save(folder)


def _train(run: Run, make: Callable[[dict[str, Any] | None], F]) -> F:
    """Take the steps that are left."""
    from rlready.policy.threads import choose_threads

    choice = choose_threads(run.noted("threads"))  # another number rounds differently: resumed would not equal
    run.note(threads=choice.threads)
    run.say(str(choice))
    kept = _Kept()
    done = run.restore({"fitting": kept})
    fitting = make(kept.state)
    kept.fitting = fitting
    assert fitting.step == done
    run.say(f"Training on {len(fitting.rows):,} rows for {fitting.steps:,} steps.")
    saved = time.monotonic()
    for step in run.steps(fitting.steps, "learning to answer"):
        metrics = fitting.advance()
        run.log(step, {"loss": metrics["nll"]})
        if time.monotonic() - saved > _SAVE_SECONDS and step < fitting.steps:
            run.save(step, {"fitting": kept})
            saved = time.monotonic()
    return fitting


def _limited(config: TextConfig, steps: int) -> TextConfig:
    return replace(config, max_steps=steps, epochs=1000) if steps else config


class _Kept:
    """A fitting's state, loaded before there is a fitting: it needs the tokenizer that is in it."""

    def __init__(self) -> None:
        self.state: dict[str, Any] | None = None
        self.fitting: Fitting | None = None

    def state_dict(self) -> dict[str, Any]:
        assert self.fitting is not None
        return self.fitting.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def _choose(
    options: FitOptions, run: Run, library: Library, domain: Domain, dev: Sequence[LoggedEpisode], folder: Path
) -> tuple[str, str]:
    """Retrieval or the small transformer, whichever says the held-out replies better."""
    from rlready.dreaming.measuring import token_f1

    if not dev:
        return "retrieval", "nothing is held out to compare simulators by, and it needs no training"
    trained = folder / "tried"
    fit_tiny(run, library, domain, trained / "model", options.steps)
    found = {
        name: token_f1(library, domain, load_simulator(name, trained, library, domain), dev)
        for name in ("retrieval", "tiny")
    }
    best = max(found, key=lambda name: (found[name], name == "retrieval"))
    if best == "tiny":
        (trained / "model").rename(folder / "model")
    shutil.rmtree(trained)
    said = " and ".join(f"{name} {value:.3f}" for name, value in found.items())
    return best, f"token F1 of held-out replies, mean over kinds of action: {said}"
