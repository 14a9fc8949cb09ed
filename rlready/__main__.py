"""Entry point: sets the OpenMP wait policy before torch is imported, then runs the command line."""

from __future__ import annotations

import os


def main() -> None:
    """Run `rlready`."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from rlready.cli import main as cli

    cli()


if __name__ == "__main__":
    main()
