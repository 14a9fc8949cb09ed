"""From logs to a gym, in stages that survive a kill.

    read          logs -> a cleaned store, and what was understood                     (`reading`, `understand`)
    learn         split by task without leaks; domain and state rules of the training tasks; where rewards come from
    simulator     trained, where it learns anything; with checkpoints                  (`simulating`)
    calibrate     what a stated confidence is worth, on dev
    measure       open loop on test beside both baselines, the curve over traces, the verdict

The stages live in a `Run` in `<out>.part`. Whatever ends the process, the same command goes on where it stopped, and
ends with the same bytes as a fit that was never stopped: a stage is a function of what the stages before left on
disk, and what a clock measured is kept apart (`verdict.json`). The gym appears under its name by one rename, when it
is whole.

Beside the gym's own files the folder then holds

    understanding.json    what the logs hold and lack
    dropped.jsonl         records that could not be read
    fit.json              splits, reward source, rules, backends beside baselines, the curve
    verdict.json          the verdict in words, and the seconds on both sides that it rests on
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
from rlready.dream.criteria import Criteria
from rlready.dream.domain import Domain
from rlready.dream.gym import Gym, RewardSource
from rlready.dream.library import Library
from rlready.dream.measure.jsonable import to_json
from rlready.dream.measure.verdict import Verdict
from rlready.dream.perturb import Perturb
from rlready.dream.simulators import load_simulator
from rlready.dream.simulators.confidence import Calibration
from rlready.dream.state import StateRules
from rlready.dreaming import measuring, reading, simulating
from rlready.dreaming.judging import choose_reward_source
from rlready.dreaming.options import FitOptions
from rlready.dreaming.place import begun, open_part, swap_in, taken
from rlready.dreaming.splits import Splits, split_tasks
from rlready.dreaming.understand import Understanding
from rlready.errors import UserError
from rlready.experience.episode import LoggedEpisode
from rlready.experience.store import episode_id
from rlready.progress import Bar, Mode
from rlready.run import Interrupted, Run
from rlready.run_files import dump_json, sync_folder, write_atomic
from rlready.run_folder import read_json
from rlready.tasks.scoring import RewardFn

FILES = ("understanding.json", "dropped.jsonl", "fit.json", "verdict.json")
OnUnderstood = Callable[[Understanding, Sequence[Mapping[str, Any]]], None]
_SPOKEN_SECONDS = 5.0


@dataclass(frozen=True)
class Fitted:
    """What a finished fit says of itself, read back from a gym's folder.

    Attributes:
        folder: the gym's.
        understanding: of the logs.
        dropped: the records that could not be read.
        facts: `fit.json`.
        verdict: in words.
        seconds: of an episode on both sides, and of a step by backend.
    """

    folder: Path
    understanding: Understanding
    dropped: tuple[Mapping[str, Any], ...]
    facts: Mapping[str, Any]
    verdict: Verdict
    seconds: Mapping[str, Any]

    @classmethod
    def load(cls, folder: str | Path) -> Fitted:
        """From a folder that `fit` wrote.

        Raises:
            UserError: it is none.
        """
        folder = Path(folder)
        found = [read_json(folder / name) for name in ("understanding.json", "fit.json", "verdict.json")]
        if None in found:
            raise UserError(f"There is no fitted gym in {folder}. Make one: rlready dream fit LOGS --out {folder}.")
        understanding, facts, said = (f or {} for f in found)
        return cls(
            folder,
            Understanding.from_json(understanding),
            reading.dropped(folder),
            facts,
            Verdict.from_json(said["verdict"]),
            said["seconds"],
        )

    def to_json(self) -> dict[str, Any]:
        """JSON-ready; dropped records are counted, not listed."""
        return {
            "gym": str(self.folder),
            "understanding": self.understanding.to_json(),
            "dropped": len(self.dropped),
            **self.facts,
            "verdict": self.verdict.to_json(),
            "seconds": dict(self.seconds),
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
    except UserError:
        if not begun(part):
            remove_folder(part)
        raise
    except Interrupted as stop:
        raise Interrupted(f"Stopped in good order. {again}") from stop
    except KeyboardInterrupt as stop:
        raise Interrupted(f"Left at once. {again}") from stop
    remove_folder(part)
    return gym


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
        gym = Gym(
            domain, state, library, simulator, splits=splits.by_name(), held_out=held_out, reward_source=source[0],
            criteria=criteria, perturb=[Perturb.parse(text) for text in self.options.perturb],
            min_confidence=self.options.min_confidence,
            low_confidence=self.options.low_confidence,  # type: ignore[arg-type]  # checked by FitOptions
            about={
                "version": __version__, "logs": [str(p) for p in self.logs], "seed": self.run.seed, "simulator": why,
                "reward_source": source[1], "verifier": self.options.verifier, "runs": understood.distinct,
                "random_sources": list(self.options.random_sources),
            },
        )  # fmt: skip
        gym.calibration = self._calibrate(gym)
        rows, points, said = self._measure(gym, understood)
        self.files["verdict.json"] = said
        self.files["fit.json"] = {
            "simulator": {"name": spec, "why": why},
            "reward_source": {"name": source[0], "why": source[1]},
            "splits": {name: len(ids) for name, ids in splits.by_name().items()} | {"twins": splits.twins},
            "domain": {
                "fingerprint": domain.fingerprint,
                "tools": len(domain.tools),
                "reads": sorted(state.reads),
                "structured": domain.structured,
                "ending": asdict(domain.ending),
            },
            "rules": state.describe(),
            "calibrated_on": 0 if gym.calibration is None else gym.calibration.count,
            "backends": rows,
            "curve": points,
        }
        return gym

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
                    "reward_source": choose_reward_source(criteria, library, self.options),
                }
                write_atomic(path, dump_json(body))
        body = json.loads(path.read_text(encoding="utf-8"))
        name, why = body["reward_source"]
        return (
            Splits.from_json(body["splits"]),
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

    def _calibrate(self, gym: Gym) -> Calibration | None:
        with self.run.stage("calibrate") as stage:
            if not stage.done:
                with self._counting("calibrating") as count:
                    found = measuring.calibrate(gym, count)
                stage.result["calibration"] = None if found is None else found.to_json()
        record = stage.result["calibration"]
        return None if record is None else Calibration.from_json(record)

    def _measure(
        self, gym: Gym, understood: Understanding
    ) -> tuple[list[dict[str, Any]], dict[str, Any] | None, dict[str, Any]]:
        """Backends, curve, and what rests on a clock."""
        options, seed = self.options, self.run.seed
        with self.run.stage("backends") as stage:
            if not stage.done:
                with self._counting("measuring beside baselines") as count:
                    rows, seconds = measuring.backends(gym, seed, count)
                stage.result.update(rows=rows, seconds=seconds)
        rows, seconds = stage.result["rows"], stage.result["seconds"]
        with self.run.stage("curve") as stage:
            if not stage.done:
                with self._counting("measuring the curve") as count:
                    stage.result["curve"] = measuring.curve(gym, seed, count) if options.curve else None
        points = stage.result["curve"]
        with self.run.stage("verdict") as stage:
            if not stage.done:
                economics = measuring.seconds(gym, understood, options.setup_seconds, options.step_seconds)
                verdict = measuring.verdict(gym, rows, points, economics, options.random_sources)
                stage.result.update(verdict=verdict.to_json(), seconds={**to_json(economics), "by_backend": seconds})
        return rows, points, dict(stage.result)

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
