"""Learning curves of GRPO and PPO against TRL's: the same within the noise between seeds?

Same task, weights, samples, loss and optimizer settings on both sides; every task is seen once, so reward is success on
new tasks. GRPO is TRL's `GRPOTrainer`, as in `vs_trl.py`. TRL dropped its `PPOTrainer`; the last release in which we
found it is 1.8.0, and its folder is given (needs the extra `bench` for the rest):

    pip install --target build/trl-1.8.0 --no-deps trl==1.8.0
    python benchmarks/curves_vs_trl.py --ppo build/trl-1.8.0     # writes benchmarks/results/curves_vs_trl.json and .png

Without `--ppo` only GRPO is compared. What is recorded with the same settings is not run again.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import chain
import ppo_sides
from driver import lockstep
from parts import RESULTS, write
from sides import GROUP, LR, MAX_TOKENS, PROMPTS, Setting
from vs_trl import SIDES, curves, versions

from rlready.policy.tiny import save_policy

PPO_TRL = "1.8.0"
SIZES = {"grpo": f"{PROMPTS} tasks x {GROUP}", "ppo": f"{ppo_sides.BATCH} tasks x 1, {ppo_sides.EPOCHS} epochs"}


def settings(method: str, packages: str) -> list[Setting]:
    """Both sides of a method, on one thread each."""
    if method == "grpo":
        return [Setting(side, 1) for side in SIDES]
    return [Setting(side, 1, ppo_sides.BATCH, "ppo_sides.py", packages if side == "trl" else "") for side in SIDES]


def compare(start: Path, steps: int, seed: int, method: str, packages: str) -> dict[str, Any]:
    """One run of each side."""
    ours, theirs = lockstep(start, steps, seed, settings(method, packages))
    return {"seed": seed, "steps": {"rlready": [asdict(s) for s in ours], "trl": [asdict(s) for s in theirs]}}


def agreement(pairs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """`vs_trl.curves`, and the largest gap between the mean curves in units of its standard error, by fifths of a run.

    Five comparisons are made, so a gap of two standard errors in one of them would be no surprise.
    """
    parts = []
    n = len(pairs[0]["steps"]["trl"])
    for i in range(5):
        at = slice(i * n // 5, (i + 1) * n // 5)
        runs = [[statistics.fmean(s["reward"] for s in p["steps"][side][at]) for p in pairs] for side in SIDES]
        gap = statistics.fmean(runs[0]) - statistics.fmean(runs[1])
        spread = sum(statistics.variance(each) for each in runs) / len(pairs) if len(pairs) > 1 else math.nan
        parts.append({"rlready": statistics.fmean(runs[0]), "trl": statistics.fmean(runs[1]), "gap": gap,
                      "standard error": math.sqrt(spread)})  # fmt: skip
    return curves(pairs) | {"fifths": parts}


def draw(found: dict[str, Any], path: Path) -> None:
    """Reward by step, a panel a method, a thin line a run, a thick one the mean."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, len(found), figsize=(4.5 * len(found), 3.2), sharey=True, squeeze=False,
                                layout="constrained")  # fmt: skip
    for axis, (method, r) in zip(axes.flat, found.items(), strict=True):
        for side, colour, label in (("rlready", "#1b6ca8", "rlready"), ("trl", "#d1603d", "TRL")):
            runs = [[s["reward"] for s in pair["steps"][side]] for pair in r["pairs"]]
            for run in runs:
                axis.plot(range(1, len(run) + 1), run, color=colour, alpha=0.25, linewidth=0.8)
            mean = [statistics.fmean(each) for each in zip(*runs, strict=True)]
            axis.plot(range(1, len(mean) + 1), mean, color=colour, linewidth=1.8, label=label)
        axis.set(title=method.upper(), xlabel="step")
        axis.spines[["top", "right"]].set_visible(False)
    axes.flat[0].set_ylabel("mean reward (sampled at 1)")
    axes.flat[0].legend(frameon=False)
    figure.savefig(path, dpi=130)


def main() -> None:
    """Run what is missing, write results and picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=25, help="training steps a run")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--ppo", help=f"folder of TRL {PPO_TRL}")
    parser.add_argument("--start", type=Path, help="folder of the warm-started policy; made there where it is missing")
    args = parser.parse_args()
    path = RESULTS / "curves_vs_trl.json"
    setting = {"steps": args.steps, "lr": LR, "max_tokens": MAX_TOKENS}
    methods: dict[str, Any] = {}
    if path.exists() and (recorded := json.loads(path.read_text()))["setting"] == setting:
        methods = recorded["methods"]
    with tempfile.TemporaryDirectory() as folder:
        start = args.start or Path(folder) / "start"
        if not start.exists():
            save_policy(chain.warm_start(seed=0), start)
        for method in ("grpo", "ppo") if args.ppo else ("grpo",):
            pairs = methods.get(method, {}).get("pairs", [])
            for seed in range(len(pairs), args.seeds):
                pairs.append(compare(start, args.steps, seed, method, str(Path(args.ppo or ".").resolve())))
                trl = versions()["trl"] if method == "grpo" else PPO_TRL
                methods[method] = {"trl": trl, "size": SIZES[method]} | agreement(pairs) | {"pairs": pairs}
                write("curves_vs_trl", {"setting": setting, "versions": versions(), "methods": methods})
                said = {k: methods[method][k] for k in ("gap", "standard error", "within noise")}
                print(f"{method}, seed {seed}: {said}", flush=True)
    draw(methods, RESULTS / "curves_vs_trl.png")


if __name__ == "__main__":
    main()
