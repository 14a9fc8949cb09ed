"""DPO per step: rlready against TRL's `DPOTrainer`, paired.

Same tiny model and weights, reference, pairs in the same order, loss and optimizer settings, same machine. The losses
of the two are compared step by step. Each side runs in its own process at its own best thread count (and micro-batch,
for TRL), found first; they take turns. Needs the extra `bench`.

    python benchmarks/dpo_vs_trl.py            # writes benchmarks/results/dpo_vs_trl.json, prints the ratio
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import chain
from dpo_sides import BETA, LR, PAIRS
from driver import lockstep
from parts import write
from sides import Setting, Step
from vs_trl import SIDES, WARM_UP, cpu, median, versions, wall

from rlready.policy.base import SampleRequest, SamplingParams, require_learner
from rlready.policy.tiny import load_policy, save_policy
from rlready.policy.tiny.learner import TinyLearner

MODELS = {"0.8M": {"dim": 128, "layers": 4}, "0.1M": {"dim": 64, "layers": 2}}
"""That of the other comparisons, and the shape that `rlready train` takes by default."""
SAMPLES = 8
NOISE = 0.02
"""The reference is the policy with this much noise on its weights, so that the first loss is not log 2 for both."""


def prepare(folder: Path, pairs: int, shape: dict[str, int], seed: int = 0) -> dict[str, float]:
    """Make the policy, the reference and the pairs: of each task a right and a wrong answer that the policy gave."""
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "start").exists():
        save_policy(chain.warm_start(0, **shape), folder / "start")  # type: ignore[arg-type]
    if not (folder / "reference").exists():
        other = load_policy(folder / "start")
        learner = require_learner(other)
        assert isinstance(learner, TinyLearner)
        noise = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for p in learner.model.parameters():
                p.add_(NOISE * p.std(correction=0) * torch.randn(p.shape, generator=noise))
        other.sync()
        save_policy(other, folder / "reference")
    found: list[dict[str, str]] = []
    policy = load_policy(folder / "start", max_batch=256)
    renderer = policy.renderer
    posed = chain.tasks(4 * pairs, seed=seed + 1)
    params = SamplingParams(max_tokens=24, stop_ids=renderer.stop_ids)
    for i in range(0, len(posed), 32):
        asked = [
            (task, SampleRequest(renderer.render(task.prompt), params, seed=i * SAMPLES + k))
            for k, task in enumerate(task for task in posed[i : i + 32] for _ in range(SAMPLES))
        ]
        said = asyncio.run(policy.sampler.sample([request for _, request in asked]))
        for at in range(0, len(asked), SAMPLES):
            task = asked[at][0]
            texts = [renderer.decode(s.completion_ids) for s in said[at : at + SAMPLES] if s.stop == "end"]
            right = [text for text in texts if chain.answer_of(text) == task.data["answer"]]
            wrong = [text for text in texts if chain.answer_of(text) != task.data["answer"]]
            if right and wrong:
                found.append({"prompt": task.prompt[0].text, "chosen": right[0], "rejected": wrong[0]})
        if len(found) >= pairs:
            break
    (folder / "pairs.json").write_text(json.dumps(found[:pairs]))
    words = [len(pair[name].split()) for pair in found[:pairs] for name in ("chosen", "rejected")]
    return {"pairs": float(len(found[:pairs])), "words an answer": statistics.fmean(words)}


def options() -> list[Setting]:
    """What the best setting of each side is chosen from."""
    ours = [Setting("rlready", n, PAIRS, "dpo_sides.py") for n in (1, 2)]
    return ours + [Setting("trl", n, micro, "dpo_sides.py") for n in (1, 2) for micro in (PAIRS, PAIRS // 4)]


def choose(folder: Path, steps: int) -> tuple[dict[str, Setting], dict[str, float]]:
    """The fastest setting of each side by wall clock, and what was measured."""
    settings = options()
    taken = lockstep(folder, steps, 99, settings)
    seconds = {str(setting): median(each, wall) for setting, each in zip(settings, taken, strict=True)}
    best = {side: min((s for s in settings if s.side == side), key=lambda s: seconds[str(s)]) for side in SIDES}
    return best, seconds


def compare(folder: Path, steps: int, seed: int, best: dict[str, Setting]) -> dict[str, Any]:
    """One pair of runs; times in seconds, ratios TRL / rlready."""
    ours, theirs = lockstep(folder, steps, seed, [best["rlready"], best["trl"]])
    steady = list(zip(ours, theirs, strict=True))[WARM_UP:]
    return {
        "seed": seed,
        "ratio": median(theirs, wall) / median(ours, wall),
        "ratio of neighbouring steps": statistics.median(b.wall / a.wall for a, b in steady),
        "ratio of processor time": median(theirs, cpu) / median(ours, cpu),
        "seconds": {"rlready": median(ours, wall), "trl": median(theirs, wall)},
        "tokens a row": {"rlready": ours[0].tokens, "trl": theirs[0].tokens},
        "losses": {
            "first": {"rlready": ours[0].reward, "trl": theirs[0].reward},
            "last": {"rlready": ours[-1].reward, "trl": theirs[-1].reward},
            "greatest difference": max(abs(a.reward - b.reward) for a, b in zip(ours, theirs, strict=True)),
        },
        "steps": {side: shown(steps) for side, steps in (("rlready", ours), ("trl", theirs))},
    }


def shown(steps: Sequence[Step]) -> list[dict[str, float]]:
    """Steps for the record."""
    of: dict[str, Callable[[Step], float]] = {"wall": wall, "cpu": cpu, "loss": lambda step: step.reward}
    return [{name: get(step) for name, get in of.items()} for step in steps]


def main() -> None:
    """Prepare, choose settings, run the pairs, write the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=25, help="training steps a run")
    parser.add_argument("--runs", type=int, default=3, help="pairs of runs")
    parser.add_argument("--folder", type=Path, help="keeps policy, reference and pairs; a temporary one if not given")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    args = parser.parse_args()
    models = {}
    with tempfile.TemporaryDirectory() as temporary:
        for name in args.models:
            folder = (args.folder or Path(temporary)) / name
            data = prepare(folder, args.steps * PAIRS, MODELS[name])
            print(name, data, flush=True)
            best, seconds = choose(folder, min(8, args.steps))
            print(f"seconds a step: { ({key: round(s, 3) for key, s in seconds.items()}) }", flush=True)
            pairs = []
            for seed in range(args.runs):
                pairs.append(compare(folder, args.steps, seed, best))
                print({k: v for k, v in pairs[-1].items() if k != "steps"}, flush=True)
            models[name] = summed(pairs, best, seconds) | {"shape": MODELS[name], "data": data}
    setting = {"pairs a step": PAIRS, "beta": BETA, "lr": LR, "steps": args.steps}
    write("dpo_vs_trl", {"setting": setting, "versions": versions(), "models": models})
    for name, found in models.items():
        print(f"{name}: TRL's step takes {found['ratio']['median']:.1f}x as long (median of {args.runs} pairs).")


def summed(pairs: Sequence[dict[str, Any]], best: dict[str, Setting], seconds: dict[str, float]) -> dict[str, Any]:
    """What the runs of one model come to."""
    ratios = [pair["ratio"] for pair in pairs]
    return {
        "tried": seconds,
        "best": {side: str(setting) for side, setting in best.items()},
        "ratio": {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)},
        "ratio of processor time": statistics.median(pair["ratio of processor time"] for pair in pairs),
        "ratio of neighbouring steps": statistics.median(pair["ratio of neighbouring steps"] for pair in pairs),
        "greatest difference of losses": max(pair["losses"]["greatest difference"] for pair in pairs),
        "runs": list(pairs),
    }


if __name__ == "__main__":
    main()
