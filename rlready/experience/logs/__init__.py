"""Logs of any agent, in the forms that tools export them, as recordings; and recordings as episodes.

bytes -> records (load) -> form (detect) -> Recording (one reader a form) -> LoggedEpisode (episodes)
"""

from rlready.experience.logs.detect import FORMS
from rlready.experience.logs.episodes import common_rules, episode_of, instruction, success_of, system_of
from rlready.experience.logs.read import read_logs
from rlready.experience.logs.report import Dropped, LogReport

__all__ = [
    "FORMS",
    "Dropped",
    "LogReport",
    "common_rules",
    "episode_of",
    "instruction",
    "read_logs",
    "success_of",
    "system_of",
]
