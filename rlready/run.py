"""A run: one folder that holds everything a piece of training did, and from which it can go on.

    runs/telecom-grpo-1/
        run.json             name, recipe, seed, state, when, seconds, transitions spent, versions
        config.toml          the resolved configuration
        metrics.jsonl        one line per logged step
        trajectories.jsonl   a sample of the episodes
        tensorboard/         the same metrics for TensorBoard
        checkpoints/<stage>/step-00000012/
        stages/<stage>/      what each finished phase left behind
        report.json, report.md, *.png

A run is a sequence of *stages* (phases); a training loop lives in one. Everything a run counts (bytes of the JSONL
files, transitions, seconds, finished stages) is written into every checkpoint and into every finished stage's record.
Resuming takes the latest of those, cuts the files back to it, and goes on; so nothing doubles and nothing jumps.

Loop contract:

    done = run.restore(parts)                # parts are remembered, so that Ctrl-C can save them
    for step in run.steps(100):              # yields done + 1 ... 100
        ...
        run.log(step, metrics)
        run.save(step, parts)                # after the step is complete
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rlready import __version__
from rlready.checkpoint import (
    RECORD,
    GlobalRandom,
    SavesFolder,
    Stateful,
    clean_leftovers,
    load_checkpoint,
    load_state,
    read_record,
    remove_folder,
    save_checkpoint,
    save_state,
)
from rlready.config import first_difference, read_toml, to_dict, to_toml
from rlready.errors import UserError
from rlready.progress import Mode, ProgressBoard
from rlready.run_files import FolderLock, JsonlFile, disk_errors, dump_json, read_jsonl, write_atomic
from rlready.run_folder import empty_folder, find_run, new_folder, now, read_header, read_json, slug
from rlready.run_interrupt import Interrupted, Interrupts
from rlready.run_log import Counters, EventLog, trajectory_record
from rlready.run_report import Report, Table, write_report
from rlready.types import Group

__all__ = ["Interrupted", "Report", "Run", "Stage", "Table", "find_run"]

_GLOBAL_RANDOM = "global_random"


class Stage:
    """A phase of a run. `done` is True where an earlier attempt finished it; its folder and result are then there."""

    def __init__(self, name: str, folder: Path, done: bool, result: dict[str, Any]) -> None:
        """See `Run.stage`."""
        self.name, self.dir, self.done, self.result = name, folder, done, result

    def save(self, parts: Mapping[str, Stateful]) -> None:
        """Keep the state of parts as this stage's artefact."""
        for name, part in parts.items():
            save_state(self.dir, name, part.state_dict())

    def load(self, parts: Mapping[str, Stateful]) -> None:
        """Put back what `save` kept.

        Raises:
            UserError: a part is missing.
        """
        for name, part in parts.items():
            part.load_state_dict(load_state(self.dir, name))


class Run:
    """See the module's text. Use as a context manager, so that the run's end is recorded whatever happens."""

    def __init__(
        self, folder: Path, header: dict[str, Any], config: Any, *, progress: Mode, keep: int, log_groups: int | None
    ) -> None:
        """Use `Run.create`."""
        self.dir = folder
        self.name = folder.name
        self.seed = int(header["seed"])
        self.config = config
        self.keep = keep
        self.log_groups = log_groups
        self.progress = ProgressBoard(progress)
        self._header = header
        self._lock = FolderLock(folder, f"Run {self.name}")
        clean_leftovers(folder)
        self._counters, self._latest = self._last_record()
        self._metrics = JsonlFile(folder / "metrics.jsonl")
        self._trajectories = JsonlFile(folder / "trajectories.jsonl")
        self._metrics.cut(self._counters.offsets.get("metrics", 0))
        self._trajectories.cut(self._counters.offsets.get("trajectories", 0))
        self._events = EventLog(folder / "tensorboard")
        for line in read_jsonl(self._metrics.path):
            self._events.add(line)
        self._stage: list[str] = []
        self._parts: dict[str, Mapping[str, Stateful]] = {}
        self._saved: dict[str, int] = {}
        self._restored: dict[str, int] = {}
        self._clock = time.monotonic()
        self._interrupt = Interrupts(self._how_to_go_on)
        self._write_header("running")

    @classmethod
    def create(
        cls,
        name: str,
        config: Any = None,
        seed: int = 0,
        *,
        root: str | Path = "runs",
        resume: str | Path | None = None,
        progress: Mode = "auto",
        keep: int = 2,
        log_groups: int | None = 4,
        **about: Any,
    ) -> Run:
        """Open a new run folder, or an old one to go on.

        Args:
            name: the folder becomes `<root>/<name>-<n>` with the next free number.
            config: a dataclass or mapping; kept as `run.config` and written to `config.toml`. On resume it must be what
                it was; None takes what was written.
            seed: of everything random in the run; on resume the run's own seed is used.
            root: where runs live.
            resume: name or path of a run to go on with.
            progress: "auto", "bar", "lines" or "quiet".
            keep: checkpoints kept per stage, the best one beside.
            log_groups: groups of each step whose trajectories are written; None writes all.
            about: further facts for `run.json`, such as recipe and preset.

        Raises:
            UserError: the run to resume does not exist, is in use, or had another configuration.
        """
        root = Path(root)
        if resume is not None:
            folder = find_run(resume, root)
            header = read_header(folder)
            stored: dict[str, Any] = read_toml(folder / "config.toml").get("config", {})
            if config is not None and (found := first_difference(stored, to_dict(config))) is not None:
                key, then, given = found
                raise UserError(
                    f"Run {folder.name} was made with {key} = {then}, and now it is {given}. "
                    "Resume with the same configuration, or start a new run."
                )
            config = stored if config is None else config
        else:
            header = {"seed": seed, "created": now(), "version": __version__, **about}
            with disk_errors(root / name, "Nothing was started."):
                folder = new_folder(root, name)
                header["name"] = folder.name
                write_atomic(folder / "run.json", dump_json(header, indent=1))
                write_atomic(folder / "config.toml", to_toml({**header, "config": to_dict(config or {})}))
        return cls(folder, header, config, progress=progress, keep=keep, log_groups=log_groups)

    # -- accounting ---------------------------------------------------------------------------------------------------

    def spend(self, **amounts: int) -> None:
        """Count what the run used up, such as `spend(real=12)` for real environment transitions."""
        for kind, n in amounts.items():
            self._counters.spend(self.scope, kind, n)

    def spent(self, kind: str = "real", stage: str | None = None) -> int:
        """How much of a kind was spent, in all or in one stage."""
        return self._counters.spent_in(kind, stage)

    def seconds(self, stage: str | None = None) -> float:
        """Wall-clock seconds, those before a resume included, in all or in one stage."""
        self._tick()
        return self._counters.seconds_in(stage)

    @property
    def scope(self) -> str:
        """The present stage, as a path; empty outside of any."""
        return "/".join(self._stage)

    # -- what is written ----------------------------------------------------------------------------------------------

    def say(self, text: str) -> None:
        """Tell the person watching."""
        self.progress.say(text)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write a step's metrics to `metrics.jsonl` and TensorBoard, with stage, real transitions and seconds so far.

        Raises:
            UserError: the disk is full.
            ValueError: a metric has a name that the run writes itself.
        """
        self._tick()
        elapsed = round(self._counters.seconds_in(None), 3)
        line = {"step": step, "stage": self.scope, "real": self.spent("real"), "run_seconds": elapsed}
        if clash := line.keys() & metrics.keys():
            raise ValueError(f"metrics may not be called {', '.join(sorted(clash))}: the run writes those itself.")
        line |= metrics
        with self._guard(self._metrics.path):
            self._metrics.append(line)
            self._events.add(line)
        if self.progress.current is not None:
            self.progress.current.show(metrics)

    def trajectories(self, step: int, groups: Sequence[Group]) -> None:
        """Write the first `log_groups` groups' trajectories to `trajectories.jsonl`.

        Raises:
            UserError: the disk is full.
        """
        where = {"step": step, "stage": self.scope}
        records = [
            trajectory_record(trajectory) | where | {"group": g, "index": i}
            for g, group in enumerate(groups[: self.log_groups])
            for i, trajectory in enumerate(group.trajectories)
        ]
        with self._guard(self._trajectories.path):
            self._trajectories.append(*records)

    def save(
        self,
        step: int,
        parts: Mapping[str, Stateful],
        *,
        score: float | None = None,
        model: SavesFolder | None = None,
    ) -> Path:
        """Write a checkpoint after `step` is complete; keeps the last `keep` and the one with the best score.

        Args:
            step: the number of the step that is complete.
            parts: what to save; the same names are given to `restore`.
            score: decides which checkpoint is best.
            model: writes the weights as a Hugging Face folder into `model/` of the checkpoint.

        Raises:
            UserError: the disk is full; the checkpoint before is intact.
            TypeError: a state holds something that cannot be stored.
        """
        folder = self._checkpoint_folder(self.scope) / f"step-{step:08d}"
        best = self._best(self.scope)
        if score is not None and (best is None or score >= best[0]):
            best = (score, step)
        record = {"scope": self.scope, "step": step, "score": score, "best": best}
        with self._guard(folder):
            save_checkpoint(folder, {**parts, _GLOBAL_RANDOM: GlobalRandom()}, record | self._commit(), model)
        self._latest = folder
        self._saved[self.scope] = step
        self._prune(best)
        self._write_header("running")
        return folder

    def note(self, **facts: Any) -> None:
        """Keep facts in `run.json`, such as `note(threads=1)`; JSON-ready values."""
        self._header |= facts
        self._write_header("running")

    def noted(self, name: str) -> Any:
        """A fact that was kept, at creation or by `note`; None where there is none."""
        return self._header.get(name)

    @property
    def fresh(self) -> bool:
        """Whether the present stage has no checkpoint yet."""
        return not self._checkpoints(self.scope)

    def restore(self, parts: Mapping[str, Stateful]) -> int:
        """Load the present stage's newest checkpoint into parts, which are remembered for Ctrl-C.

        Returns:
            The number of the step it was saved after; 0 where there is none.

        Raises:
            UserError: the checkpoint is damaged or of another model.
            ValueError: this stage already ran a loop; put every loop in a stage of its own.
        """
        if self.scope in self._parts:
            raise ValueError(
                f'Run {self.name}: stage "{self.scope}" already has a loop. Put each loop in its own run.stage().'
            )
        newest = self._checkpoints(self.scope)[-1:]
        step = 0
        if newest:
            step = int(load_checkpoint(newest[0], {**parts, _GLOBAL_RANDOM: GlobalRandom()})["step"])
            if step > 0:
                self.say(f"Resumed {self.scope or self.name} after step {step}.")
        self._parts[self.scope] = parts
        self._restored[self.scope] = self._saved[self.scope] = step
        return step

    # -- loops and stages ---------------------------------------------------------------------------------------------

    def steps(self, n: int, label: str = "train") -> Iterator[int]:
        """The steps still to do, counted from 1, with progress and time left.

        Ctrl-C once lets the step finish, saves what `restore` was given, and raises `Interrupted`; twice leaves at
        once.
        """
        scope = self.scope
        start = self._restored.get(scope, 0)
        title = f"{scope}: {label}" if scope else label
        with self._interrupt.caught(), self.progress.track(title, n, start) as bar:
            for step in range(start + 1, n + 1):
                yield step
                bar.advance()
                if self._interrupt.asked:
                    self._stop(step, scope)

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[Stage]:
        """A phase that is skipped on resume when it was finished.

            with run.stage("cloning") as stage:
                if stage.done:
                    stage.load({"learner": learner})
                else:
                    ...train...
                    stage.save({"learner": learner})
                    stage.result["success"] = 0.4
            stage.result["success"]

        A stage that was left by an exception starts again from an empty folder; its training loop goes on from its
        checkpoint. Stages nest.
        """
        self._tick()
        scope = "/".join([*self._stage, name])
        folder = self.dir / "stages" / slug(scope)
        record = read_json(folder / RECORD)
        if record is None:
            empty_folder(folder)
        stage = Stage(name, folder, record is not None, record["result"] if record else {})
        self._stage.append(name)
        try:
            yield stage
            self._tick()
            if record is None:
                with self._guard(folder):
                    done = {"scope": scope, "result": stage.result, "when": now()}
                    write_atomic(folder / RECORD, dump_json(done | self._commit(), indent=1))
        finally:
            self._tick()
            self._stage.pop()

    # -- the end ------------------------------------------------------------------------------------------------------

    def report(
        self,
        title: str = "",
        *,
        tables: Sequence[Table] = (),
        metrics: Mapping[str, float] | None = None,
        notes: Sequence[str] = (),
        plot: str | None = None,
        plots: Sequence[str] = (),
    ) -> Report:
        """Write `report.json`, `report.md` and the plots of success against steps and real transitions.

        Args:
            title: first line.
            tables: what the run shows.
            metrics: the numbers that claims are judged by, one per name.
            notes: sentences below the tables.
            plot: metric to draw; by default the most telling one that was logged.
            plots: names of picture files in the run folder that are to be shown first.

        Raises:
            UserError: the disk is full.
        """
        report = Report(
            title or self.name, list(tables), dict(metrics or {}), list(notes), list(plots), self.seed, self.seconds(),
            spent=self._counters.totals(),
        )  # fmt: skip
        with self._guard(self.dir / "report.json"):
            write_report(report, self.dir, plot)
        return report

    def close(self, state: str = "done") -> None:
        """Record how the run ended ("done", "interrupted", "failed") and give the folder back."""
        self._interrupt.release()
        self.progress.close()
        if not self._metrics.closed:
            with contextlib.suppress(OSError):  # on a full disk the state stays "running", shown as "stopped"
                self._write_header(state)
            self._metrics.close()
            self._trajectories.close()
            self._events.close()
            self._lock.release()

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Close with the state that the block's end implies; what ended it stands in `run.json`."""
        interrupted = kind is not None and issubclass(kind, KeyboardInterrupt)
        if error is not None and interrupted and not error.args:  # Ctrl-C outside of a loop's steps
            error.args = (f"Left at once. {self._how_to_go_on()}",)
        self._header.pop("error", None)
        if error is not None and not interrupted:
            said = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            self._header["error"] = said[:2000]
        self.close("done" if kind is None else "interrupted" if interrupted else "failed")

    # -- within -------------------------------------------------------------------------------------------------------

    def _commit(self) -> dict[str, Any]:
        """Sync the logs and say where everything stands; what a resume starts from."""
        self._tick()
        self._metrics.sync()
        self._trajectories.sync()
        self._counters.sequence += 1
        self._counters.offsets = {"metrics": self._metrics.size, "trajectories": self._trajectories.size}
        return {"counters": self._counters.to_json()}

    def _last_record(self) -> tuple[Counters, Path | None]:
        """The latest of all checkpoints and finished stages."""
        best, where = Counters(), None
        for path in [*self.dir.glob(f"checkpoints/*/step-*/{RECORD}"), *self.dir.glob(f"stages/*/{RECORD}")]:
            record = read_record(path.parent) if "checkpoints" in path.parts else read_json(path)
            counters = Counters.from_json((record or {})["counters"])
            if counters.sequence > best.sequence:
                best, where = counters, path.parent
        return best, where

    def _checkpoint_folder(self, scope: str) -> Path:
        return self.dir / "checkpoints" / (slug(scope) or "run")

    def _checkpoints(self, scope: str) -> list[Path]:
        return sorted(self._checkpoint_folder(scope).glob("step-*"))

    def _best(self, scope: str) -> tuple[float, int] | None:
        for folder in reversed(self._checkpoints(scope)):
            best = read_record(folder).get("best")
            return (float(best[0]), int(best[1])) if best else None
        return None

    def _prune(self, best: tuple[float, int] | None) -> None:
        for folder in self._checkpoints(self.scope)[: -self.keep]:
            if best is None or folder.name != f"step-{best[1]:08d}":
                remove_folder(folder)

    def _guard(self, path: Path) -> contextlib.AbstractContextManager[None]:
        return disk_errors(path, f"{self._safe()} Free some space, then resume {self.name}.")

    def _safe(self) -> str:
        if self._latest is None:
            return "Nothing had been saved yet in this run."
        return f"What was saved in {self._latest} is intact."

    def _how_to_go_on(self) -> str:
        return self._safe() if self._latest is None else f"{self._safe()} Go on with --resume {self.name}."

    def _tick(self) -> None:
        now = time.monotonic()
        self._counters.pass_time(self.scope, now - self._clock)
        self._clock = now

    def _write_header(self, state: str) -> None:
        self._tick()
        self._header |= {
            "state": state,
            "updated": now(),
            "seconds": round(self._counters.seconds_in(None), 1),
            "spent": self._counters.totals(),
        }
        with self._guard(self.dir / "run.json"):
            write_atomic(self.dir / "run.json", dump_json(self._header, indent=1))

    def _stop(self, step: int, scope: str) -> None:
        parts = self._parts.get(scope)
        if parts is not None and self._saved.get(scope) != step:
            self.save(step, parts)
        if parts is None:
            raise Interrupted(f"Stopped after step {step}. This loop saves nothing, so it will start again.")
        raise Interrupted(f"Stopped after step {step} and saved. Go on with --resume {self.name}.")
