"""The command line. Commands import what they need when they run: `rlready --help` is quick and loads no torch."""

from __future__ import annotations

from rlready.cli.app import app, main

__all__ = ["app", "main"]
