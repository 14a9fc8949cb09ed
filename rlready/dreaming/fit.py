"""From logs to a gym, in stages that survive a kill.

    read          logs -> a cleaned store, and what was understood                     (`reading`, `understand`)
    learn         split by task without leaks; domain and state rules of the training tasks; where rewards come from
    simulator     trained, where it learns anything; with checkpoints                  (`simulating`)
    calibrate     what a stated confidence is worth, on dev
    measure       open loop on test beside both baselines, the curve over traces, the verdict

The stages live in a `Run` in `<out>.part`. Whatever ends the process, the same command goes on where it stopped, and
ends with the same bytes as a fit that was never stopped: a stage is a function of what the stages before left on disk,
and what a clock measured is kept apart (`times.json`). The gym appears under its name by one rename, when it is whole.

Beside the gym's own files the folder then holds

    understanding.json    what the logs hold and lack
    dropped.jsonl         records that could not be read
    fit.json              splits, reward source, curve, backends beside baselines, calibration
    times.json            what was measured in seconds, and the verdict that rests on it
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rlready import __version__
from rlready.checkpoint import remove_folder
from rlready.config import to_dict
from rlready.dream.criteria import Criteria, changes
from rlready.dream.domain import Domain
from rlready.dream.gym import REWARD_SOURCES, Gym, RewardSource
from rlready.dream.library import Library
from rlready.dream.perturb import Perturb
from rlready.dream.simulators import load_simulator
from rlready.dream.simulators.confidence import Calibration
from rlready.dream.state import StateRules
from rlready.dreaming import measuring, reading, simulating
from rlready.dreaming.place import open_part, swap_in, taken
from rlready.dreaming.splits import Splits, split_tasks
from rlready.dreaming.understand import Understanding
from rlready.errors import UserError, did_you_mean
from rlready.experience.episode import LoggedEpisode
from rlready.experience.store import episode_id
from rlready.progress import Bar, Mode
from rlready.run import Interrupted, Run
from rlready.run_files import dump_json, sync_folder, write_atomic
from rlready.run_folder import read_json
from rlready.tasks.scoring import RewardFn

FILES = ("understanding.json", "dropped.jsonl", "fit.json", "times.json")
OnUnderstood = Callable[[Understanding, Sequence[Mapping[str, Any]]], None]
_CRITERIA_RIGHT = 0.9
_CRITERIA_KNOWN = 0.5
_SPOKEN_SECONDS = 5.0


@dataclass(frozen=True)
class FitOptions:
    """How a gym is made.

    Attributes:
        simulator: "retrieval" (no training), "tiny", "hf:NAME", "http://...#MODEL", or "auto".
        rewards: a file of `id, reward`; "" for the log's own.
        verifier: name of the function that scores runs and dreams, such as "my.py:score"; "" for none.
        reward_source: who says whether a dream succeeded; "" chooses (see `choose_reward_source`).
        random_sources: sources in the log that are random play.
        perturb: trouble on purpose, such as "error=0.05".
        templates: folder of prompt templates of one's own, for language models; "" for ours.
        held_out: share of the tasks that nothing is learned from; half calibrates, half measures.
        min_confidence: replies below end or mask an episode; 0 never.
        low_confidence: "mask" or "end".
        setup_seconds, step_seconds: what the real environment takes; None reads the log's times.
        steps: training steps of a simulator that is trained; 0 chooses by the amount of text.
        curve: whether to measure the curve over numbers of traces.
    """

    simulator: str = "retrieval"
    rewards: str = ""
    verifier: str = ""
    reward_source: str = ""
    random_sources: tuple[str, ...] = ()
    perturb: tuple[str, ...] = ()
    templates: str = ""
    held_out: float = 0.2
    min_confidence: float = 0.0
    low_confidence: str = "mask"
    setup_seconds: float | None = None
    step_seconds: float | None = None
    steps: int = 0
    curve: bool = True

    def __post_init__(self) -> None:
        """Check what cannot work, before hours are spent.

        Raises:
            UserError: a value is out of range or unknown; names the option.
        """
        simulating.check(self.simulator)
        for text in self.perturb:
            Perturb.parse(text)
        if self.reward_source and self.reward_source not in REWARD_SOURCES:
            raise did_you_mean("reward source", self.reward_source, REWARD_SOURCES)
        if self.reward_source == "verifier" and not self.verifier:
            raise UserError('The reward source "verifier" needs a verifier: --verifier my.py:score.')
        if not 0 <= self.held_out < 1:
            raise UserError(f"held_out is {self.held_out:g}; it is a share of the tasks, at least 0 and below 1.")
        if not 0 <= self.min_confidence <= 1:
            raise UserError(f"min_confidence is {self.min_confidence:g}; it must lie in [0, 1].")
        if self.low_confidence not in ("mask", "end"):
            raise did_you_mean("way with low confidence", self.low_confidence, ("mask", "end"))
        for name in ("setup_seconds", "step_seconds"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise UserError(f"{name} is {value:g}; it must not be negative.")
        if self.steps < 0:
            raise UserError(f"steps is {self.steps}; it must not be negative.")


@dataclass(frozen=True)
class Fitted:
    """What a finished fit says of itself, read back from a gym's folder.

    Attributes:
        folder: the gym's.
        understanding: of the logs.
        dropped: the records that could not be read.
        facts: `fit.json`.
        times: `times.json`; its "verdict" is the verdict in words.
    """

    folder: Path
    understanding: Understanding
    dropped: tuple[Mapping[str, Any], ...]
    facts: Mapping[str, Any]
    times: Mapping[str, Any]

    @classmethod
    def load(cls, folder: str | Path) -> Fitted:
        """From a folder that `fit` wrote.

        Raises:
            UserError: it is none.
        """
        folder = Path(folder)
        found = [read_json(folder / name) for name in ("understanding.json", "fit.json", "times.json")]
        if None in found:
            raise UserError(f"There is no fitted gym in {folder}. Make one: rlready dream fit LOGS --out {folder}.")
        understanding, facts, times = (f or {} for f in found)
        return cls(folder, Understanding.from_json(understanding), reading.dropped(folder), facts, times)

    def to_json(self) -> dict[str, Any]:
        """JSON-ready; dropped records are counted, not listed."""
        return {
            "gym": str(self.folder),
            "understanding": self.understanding.to_json(),
            "dropped": len(self.dropped),
            **self.facts,
            **self.times,
        }


def fit(
    logs: Sequence[str | Path],
    out: str | Path,
    options: FitOptions | None = None,
    *,
    verifier: RewardFn | None = None,
    seed: int = 0,
    force: bool = False,
    progress: Mode = "auto",
    on_understood: OnUnderstood | None = None,
) -> Gym:
    """Make a gym from logs; the same call goes on after a kill.

    Args:
        logs: files or folders.
        out: the gym's folder; `<out>.part` beside it holds what is under way.
        options: see `FitOptions`.
        verifier: the function that `options.verifier` names.
        seed: of the split and of training.
        force: replace a finished gym (it stays until the new one is whole), and drop an unfinished fit of another kind.
        progress: "auto", "bar", "lines" or "quiet".
        on_understood: called with what was understood and the dropped records, before anything is learned.

    Raises:
        UserError: a file is missing or holds nothing, an option cannot work, the place is taken, or the disk is full.
        Interrupted: Ctrl-C; the message says how to go on.
    """
    options = options or FitOptions()
    if not logs:
        raise UserError("There are no logs to fit. Name a file or a folder.")
    if bool(options.verifier) != (verifier is not None):
        raise ValueError("options.verifier names the verifier that is given")
    out = Path(out)
    part = out.with_name(out.name + ".part")
    inputs = [*logs, *([options.rewards] if options.rewards else [])]
    job = {
        "seed": seed,
        "logs": [str(p) for p in logs],
        "options": to_dict(options),
        "inputs": reading.fingerprint(inputs),
    }
    if taken(out, part, job, force):
        remove_folder(part)
        return Gym.load(out)
    open_part(part, job, force)
    again = f"What was done is kept in {part}/. Run the same command again to go on."
    try:
        with Run.create(part.name, resume=part, progress=progress) as run:
            work = _Fit(run, [Path(p) for p in logs], options, verifier, on_understood)
            gym = work.gym()
            _deliver(gym, work, out, part)
    except Interrupted as stop:
        raise Interrupted(f"Stopped in good order. {again}") from stop
    except KeyboardInterrupt as stop:
        raise Interrupted(f"Left at once. {again}") from stop
    remove_folder(part)
    return Gym.load(out)


def choose_reward_source(
    criteria: Criteria, train: Sequence[LoggedEpisode], library: Library, options: FitOptions
) -> tuple[RewardSource, str]:
    """Who says whether a dream succeeded, and why, as a sentence.

    The verifier where there is one. Else the pinned criteria where changes decide: at least half of the training
    tasks have a recorded success to compare with, and on these tasks comparing changes agrees with the logs' rewards
    nine times in ten (the numbers are ours). Else the simulator judges.
    """
    if options.reward_source:
        return options.reward_source, "as was asked for"  # type: ignore[return-value]
    if options.verifier:
        return "verifier", f"{options.verifier} was given"
    judged = [(e, id) for id, e in library.episodes.items() if e.judged]
    if not judged:
        return "model", "no run has a reward, so nothing else is known; its verdicts are guesses"
    tasks = {e.task_id for e in train}
    known = {t for t in tasks if criteria.known(t)}
    on_known = [(e, library.steps(id)) for e, id in judged if e.task_id in known]
    writes = any(changes(steps, criteria.reads) for e, steps in on_known if e.success)
    if not writes:
        return "model", "no recorded success changed anything by a call, so calls do not decide"
    agree = sum(criteria.met(e.task_id, steps) == e.success for e, steps in on_known) / len(on_known)
    share = f"{len(known)} of {len(tasks)} training tasks have a recorded success to compare with"
    if len(known) < _CRITERIA_KNOWN * len(tasks):
        return "model", f"only {share}"
    if agree < _CRITERIA_RIGHT:
        return "model", f"comparing changes agrees with the logs' rewards on only {agree:.0%} of {len(on_known)} runs"
    return (
        "criteria",
        f"{share}, and comparing changes agrees with the logs' rewards on {agree:.0%} of {len(on_known)} runs",
    )


def _deliver(gym: Gym, work: _Fit, out: Path, part: Path) -> None:
    """The finished folder under its name, by one rename."""
    whole = part / "gym"
    model, templates = work.trained / "model", work.trained / "templates"
    gym.save(whole, model=model if model.exists() else None)
    if templates.exists():
        shutil.copytree(templates, whole / "templates")
    for name in FILES:
        source = work.files[name]
        if isinstance(source, Path):
            shutil.copyfile(source, whole / name)
        else:
            write_atomic(whole / name, dump_json(source, indent=1))
    sync_folder(whole)
    work.run.note(delivered=True)
    swap_in(whole, out)


# ---------------------------------------------------------------------- the stages


@dataclass
class _Fit:
    """One fit under way; every stage reads what the ones before left on disk."""

    run: Run
    logs: list[Path]
    options: FitOptions
    verifier: RewardFn | None
    on_understood: OnUnderstood | None
    files: dict[str, Any] = field(default_factory=dict)
    trained: Path = Path()

    def gym(self) -> Gym:
        """All stages, then the parts put together."""
        episodes, facts, understood = self._read()
        splits, domain, state, criteria, source = self._learn(episodes, facts)
        train = _of(episodes, splits.train)
        library = Library(train, domain, state)
        held_out = sorted((e for e in episodes if e.task_id not in set(splits.train)), key=episode_id)
        spec, why = self._simulator(library, domain, _of(episodes, splits.dev))
        simulator = load_simulator(spec, self.trained, library, domain)
        parts = measuring.Parts(domain, state, library, simulator)
        calibration = self._calibrate(parts, _of(episodes, splits.dev))
        measured = self._measure(parts, calibration, _of(episodes, splits.test), understood)
        about = {
            "version": __version__,
            "logs": [str(p) for p in self.logs],
            "seed": self.run.seed,
            "simulator": why,
            "reward_source": source[1],
            "verifier": self.options.verifier,
            "runs": understood.distinct,
        }
        self.files["fit.json"] = {
            "simulator": {"name": spec, "why": why},
            "reward_source": {"name": source[0], "why": source[1]},
            "splits": {name: len(ids) for name, ids in splits.by_name().items()} | {"twins": splits.twins},
            "domain": {
                "fingerprint": domain.fingerprint,
                "tools": len(domain.tools),
                "reads": sorted(state.reads),
                "rules": state.describe(),
                "structured": domain.structured,
            },
            "calibrated_on": 0 if calibration is None else calibration.count,
            **measured["figures"],
        }
        self.files["times.json"] = measured["times"]
        return Gym(
            domain,
            state,
            library,
            simulator,
            splits=splits.by_name(),
            held_out=held_out,
            reward_source=source[0],
            criteria=criteria,
            perturb=[Perturb.parse(text) for text in self.options.perturb],
            calibration=calibration,
            min_confidence=self.options.min_confidence,
            low_confidence=self.options.low_confidence,  # type: ignore[arg-type]  # checked by FitOptions
            about=about,
        )

    def _read(self) -> tuple[list[LoggedEpisode], reading.Facts, Understanding]:
        with self.run.stage("read") as stage:
            if not stage.done:
                reading.read(
                    self.logs,
                    stage.dir,
                    rewards=self.options.rewards or None,
                    verifier=self.verifier,
                    random=self.options.random_sources,
                    on_progress=self._spoken("read {:,} runs"),
                )
        for name in ("understanding.json", "dropped.jsonl"):
            self.files[name] = stage.dir / name
        understood = Understanding.from_json(read_json(stage.dir / "understanding.json") or {})
        if self.on_understood is not None:
            self.on_understood(understood, reading.dropped(stage.dir))
        episodes, facts = reading.stored(stage.dir)
        return episodes, facts, understood

    def _learn(
        self, episodes: Sequence[LoggedEpisode], facts: reading.Facts
    ) -> tuple[Splits, Domain, StateRules, Criteria, tuple[RewardSource, str]]:
        with self.run.stage("learn") as stage:
            path = stage.dir / "learned.json"
            if not stage.done:
                self.run.say("Learning what actions there are, what code can answer, and what is held out.")
                splits = split_tasks(episodes, self.options.held_out, self.run.seed)
                train = _of(episodes, splits.train)
                domain = Domain.learn(train, rules=facts.rules, tools=facts.tools)
                state = StateRules.learn(train, domain)
                library = Library(train, domain, state)
                judged = ((e.task_id, e.success, library.steps(id)) for id, e in library.episodes.items() if e.judged)
                criteria = Criteria.learn(judged, state.reads)
                body = {
                    "splits": asdict(splits),
                    "domain": domain.to_json(),
                    "state": state.to_json(),
                    "criteria": criteria.to_json(),
                    "reward_source": choose_reward_source(criteria, train, library, self.options),
                }
                write_atomic(path, dump_json(body))
        body = json.loads(path.read_text(encoding="utf-8"))
        name, why = body["reward_source"]
        return (
            Splits(**{k: tuple(v) if isinstance(v, list) else v for k, v in body["splits"].items()}),
            Domain.from_json(body["domain"]),
            StateRules.from_json(body["state"]),
            Criteria.from_json(body["criteria"]),
            (name, why),
        )

    def _simulator(self, library: Library, domain: Domain, dev: Sequence[LoggedEpisode]) -> tuple[str, str]:
        with self.run.stage("simulator") as stage:
            if not stage.done:
                name, why = simulating.train(self.options, self.run, library, domain, dev, stage.dir)
                stage.result.update(name=name, why=why)
        self.trained = stage.dir
        return stage.result["name"], stage.result["why"]

    def _calibrate(self, parts: measuring.Parts, dev: Sequence[LoggedEpisode]) -> Calibration | None:
        with self.run.stage("calibrate") as stage:
            if not stage.done:
                with self._counting("calibrating") as count:
                    found = measuring.calibrate(parts, dev, count)
                stage.result["calibration"] = None if found is None else found.to_json()
        record = stage.result["calibration"]
        return None if record is None else Calibration.from_json(record)

    def _measure(
        self,
        parts: measuring.Parts,
        calibration: Calibration | None,
        test: Sequence[LoggedEpisode],
        understood: Understanding,
    ) -> dict[str, Any]:
        with self.run.stage("measure") as stage:
            if not stage.done:
                with self._counting("measuring") as count:
                    stage.result.update(
                        measuring.measure(parts, calibration, test, understood, self.options, self.run.seed, count)
                    )
        return stage.result

    def _spoken(self, text: str) -> Callable[[int], None]:
        """A function that says a count now and then, where no total is known."""
        last = time.monotonic()

        def say(count: int) -> None:
            nonlocal last
            if time.monotonic() - last >= _SPOKEN_SECONDS:
                last = time.monotonic()
                self.run.say(text.format(count))

        return say

    @contextlib.contextmanager
    def _counting(self, label: str) -> Iterator[measuring.Count]:
        """A function that moves a bar: called with (done, total)."""
        with contextlib.ExitStack() as stack:
            bar: Bar | None = None

            def show(done: int, total: int) -> None:
                nonlocal bar
                if bar is None or bar.total != total:
                    stack.close()
                    bar = stack.enter_context(self.run.progress.track(label, total))
                if done > bar.done:
                    bar.done = done - 1
                    bar.advance()

            yield show


def _of(episodes: Sequence[LoggedEpisode], tasks: Sequence[str]) -> list[LoggedEpisode]:
    wanted = set(tasks)
    return [e for e in episodes if e.task_id in wanted]
