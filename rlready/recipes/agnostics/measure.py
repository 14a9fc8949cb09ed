"""What the recipe measures: conformance of languages, programs that ignore their input, and the claims' numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from rlready.aio import run_sync
from rlready.envs.chat import ChatEnv
from rlready.policy.base import Policy, SamplingParams
from rlready.recipes.agnostics.judge import Judge, cases_of
from rlready.recipes.study import MODES, Study
from rlready.rewards.code import RESULTS, find_program, language
from rlready.rewards.code.conformance import Conformance, check_language
from rlready.rollout.actors import PolicyActor
from rlready.rollout.collect import play_many
from rlready.run import Run
from rlready.run_files import read_jsonl
from rlready.run_report import Table, percent
from rlready.scoring import answer_text
from rlready.seeds import derive
from rlready.tasks.base import TaskSet
from rlready.types import Trajectory


@dataclass(frozen=True)
class Names:
    """Of the arms."""

    base: str = "warm-up"
    rejection: str = "rejection sampling"
    binary: str = "GRPO"
    partial: str = "GRPO, partial reward"

    def other(self, name: str, second: str) -> str:
        """The same arm in the second language."""
        return f"{name}, {second}"


def conformance(run: Run, names: Sequence[str], timeout_s: float) -> tuple[dict[str, float], Table]:
    """Run the conformance programs of every language that is installed, in a stage; numbers, and a table."""
    with run.stage("conformance") as stage:
        if not stage.done:
            rows: dict[str, Any] = {}
            for name in names:
                chosen = language(name)
                if not chosen.runs_here:
                    run.say(f"{chosen.name} is left out: {chosen.remedy}.")
                    continue
                rows[chosen.name] = _row(check_language(chosen, timeout_s=timeout_s))
            stage.result["rows"] = rows
        rows = stage.result["rows"]
    numbers = {
        "conformance/languages with all codes": float(sum(row["codes"] == len(RESULTS) for row in rows.values())),
        "conformance/languages": float(len(rows)),
        "conformance/not contained": float(sum(not row["contained"] for row in rows.values())),
    }
    table = Table(
        "Conformance: one harness, and a YAML file for each language",
        ("language", "result codes seen", "contained", "not as wanted"),
        [[name, f"{row['codes']} of {len(RESULTS)}", "yes" if row["contained"] else "no", row["bad"] or "-"]
         for name, row in rows.items()],
    )  # fmt: skip
    return numbers, table


def _row(found: Conformance) -> dict[str, Any]:
    bad = ", ".join(f"{check.name}: {check.got}" for check in found.checks if not check.ok)
    return {"codes": len(found.codes), "contained": found.contained, "bad": bad}


@dataclass(frozen=True)
class Probe:
    """What an arm's programs for held-out tasks are like, sampled at 1.

    Attributes:
        ran: share that runs on every test.
        ignores: share that runs and prints the same for all inputs, though the answers differ.
        empty: share that runs and prints nothing at all.
        right: share that passes.
    """

    ran: float
    ignores: float
    empty: float
    right: float


def probe(run: Run, name: str, policy: Policy, tasks: TaskSet, judge: Judge, n: int, max_tokens: int) -> Probe:
    """Sample so many programs and look whether they read what they are given, in a stage."""
    with run.stage(f"probe {name}") as stage:
        if not stage.done:
            params = SamplingParams(temperature=1.0, max_tokens=max_tokens)
            actor = PolicyActor(policy, params, derive(run.seed, "probe"))
            played = run_sync(play_many(tasks, ChatEnv, actor, n, derive(run.seed, "probe")))
            run.spend(measure=len(played))
            stage.result.update(run_sync(_looked([t for t in played if not t.excluded], judge)))
    return Probe(**stage.result)


async def _looked(played: Sequence[Trajectory], judge: Judge) -> dict[str, float]:
    ran, ignores, empty = [], [], []
    for trajectory in played:
        text = find_program(answer_text(trajectory), judge.pool.language.name)
        outputs = await judge.outputs(text, cases_of(trajectory.task)) if text.strip() else None
        differ = len({test.output for test in cases_of(trajectory.task)}) > 1
        ran.append(float(outputs is not None))
        ignores.append(float(outputs is not None and differ and len(set(outputs)) == 1))
        empty.append(float(outputs is not None and not any(outputs)))
    right = [float(t.success) for t in played]
    return {"ran": fmean(ran), "ignores": fmean(ignores), "empty": fmean(empty), "right": fmean(right)}


def judged(
    studies: tuple[Study, Study], second: str, names: Names, probes: dict[str, Probe]
) -> tuple[dict[str, float], list[Table], list[str]]:
    """The numbers that the claims are judged by, with a table and notes that show them."""
    one, two = studies
    out: dict[str, float] = {}
    for mode in MODES:

        def gap(study: Study, a: str, b: str, mode: str = mode) -> float:
            return study.arms[a].success("test", mode) - study.arms[b].success("test", mode)

        out[f"start, first language, {mode}"] = one.arms[names.base].success("test", mode)
        out[f"gain, first language, {mode}"] = gap(one, names.binary, names.base)
        out[f"gain, second language, {mode}"] = gap(
            two, names.other(names.binary, second), names.other(names.base, second)
        )
        out[f"over rejection sampling, {mode}"] = gap(one, names.binary, names.rejection)
        out[f"binary less partial, {mode}"] = gap(one, names.binary, names.partial)
    for name, each in probes.items():
        out |= {f"probe/{name}/{key}": getattr(each, key) for key in ("ran", "ignores", "empty", "right")}
    out["ignores input, partial less binary"] = probes[names.partial].ignores - probes[names.binary].ignores
    table = Table(
        "Do programs read their input? Programs for held-out tasks, at T=1",
        ("arm", "run", "run and ignore their input", "run and print nothing", "right"),
        [[name, *(percent(x) for x in (p.ran, p.ignores, p.empty, p.right))] for name, p in probes.items()],
    )
    notes = [
        f"{a} against {b}, pass@1: {one.difference(a, b, mode='tuned')}."
        for a, b in ((names.binary, names.base), (names.binary, names.rejection), (names.binary, names.partial))
    ]
    a, b = (names.other(name, second) for name in (names.binary, names.base))
    notes.append(f"{a} against {b}, pass@1: {two.difference(a, b, mode='tuned')}.")
    return out, [table], notes


def draw_curves(run: Run, path: Path, names: Sequence[str]) -> str:
    """Success on dev tasks at T=1 by programs judged, and entropy by update; returns the file's name."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    lines = read_jsonl(run.dir / "metrics.jsonl")
    figure = Figure(figsize=(9.6, 3.6), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    shown = (("eval/success", "transitions", "programs judged", "right on dev tasks, T=1"),
             ("entropy", "step", "update", "entropy, nats a token"))  # fmt: skip
    for place, (metric, at, below, beside) in enumerate(shown, 1):
        axes = figure.add_subplot(1, 2, place)
        for name in names:
            points = [(e.get(at, 0.0), e[metric]) for e in lines if e["stage"] == name and e.get(metric) is not None]
            axes.plot([x for x, _ in points], [y for _, y in points], label=name, linewidth=1.4)
        axes.set(xlabel=below, ylabel=beside)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        if place == 1:
            axes.legend(frameon=False, fontsize=8)
    figure.savefig(path)
    return path.name
