"""`python -m rlready.worlds.fiction`: logs of scripted play in a fictional world."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rlready.errors import UserError
from rlready.worlds.fiction.play import play_logs, write_logs
from rlready.worlds.fiction.world import KINDS, MIXED, FictionWorld


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m rlready.worlds.fiction", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    logs = commands.add_parser("logs", help="play scripted episodes and write them as OpenAI chat JSONL")
    logs.add_argument("out", metavar="OUT.jsonl", help="the file to write")
    logs.add_argument("--episodes", type=int, default=3600, help="how many (default %(default)s)")
    logs.add_argument("--seed", type=int, default=0, help="of the players' chance (default %(default)s)")
    logs.add_argument("--setting", choices=KINDS, default="desk", help="small or large (default %(default)s)")
    logs.add_argument("--world-seed", type=int, default=0, help="of rules and records (default %(default)s)")
    logs.add_argument("--rows", type=int, default=400, help='records per shop, of "shop" (default %(default)s)')
    logs.add_argument("--split", default="train", help="whose tickets: train, dev, test (default %(default)s)")
    logs.add_argument(
        "--mix",
        default=",".join(f"{name}={weight:g}" for name, weight in MIXED.items()),
        help="players and their weights: random, blind, sloppy, careful (default %(default)s)",
    )
    given = parser.parse_args(arguments)
    try:
        world = FictionWorld(given.world_seed, given.setting, rows=given.rows)
        recordings = play_logs(world, read_mix(given.mix), given.episodes, given.seed, split=given.split)
        lines = write_logs(recordings, given.out)
    except UserError as problem:
        print(problem, file=sys.stderr)
        return 2
    right = sum((r.reward or 0.0) > 0 for r in recordings)
    tickets = len({r.task_id for r in recordings})
    print(f"{given.out}: {lines} episodes of {tickets} tickets, {right / lines:.0%} of them right.")
    return 0


def read_mix(text: str) -> dict[str, float]:
    """`blind=4,random=1` as weights by name.

    Raises:
        UserError: a part has another form.
    """
    out: dict[str, float] = {}
    for part in text.split(","):
        name, _, weight = part.partition("=")
        try:
            out[name.strip()] = float(weight or 1)
        except ValueError:
            raise UserError(f'--mix: "{part}" is not a player and its weight, such as blind=4.') from None
    return out


if __name__ == "__main__":
    sys.exit(main())
