"""Fictional worlds: seeded tables behind tools, tickets whose right resolution is a function of hidden records.

python -m rlready.worlds.fiction logs desk.jsonl --episodes 3600 --seed 0
"""

from __future__ import annotations

from rlready.worlds.fiction.env import FictionEnv
from rlready.worlds.fiction.play import play_logs, write_logs
from rlready.worlds.fiction.setting import CLOSING, Setting
from rlready.worlds.fiction.world import MIXED, SIZES, FictionWorld, scripts_of

__all__ = [
    "CLOSING",
    "MIXED",
    "SIZES",
    "FictionEnv",
    "FictionWorld",
    "Setting",
    "play_logs",
    "scripts_of",
    "write_logs",
]
