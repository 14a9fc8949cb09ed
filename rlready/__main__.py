"""Entry point: sets the OpenMP wait policy before torch is imported, then runs the command line."""

from __future__ import annotations

import gc
import os


def main() -> None:
    """Run `rlready`."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    gc.set_threshold(50_000, 20, 100)  # rollouts make many small objects that live; full collections cost pauses
    from rlready.cli import main as cli

    cli()


if __name__ == "__main__":
    main()
