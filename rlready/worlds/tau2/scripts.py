"""Scripted policies of the telecom domain, from random to near expert, for demonstrations and logs.

Each knows the ticket and what it has seen, nothing else. Measured success on the held-out fault sets stands in the
tests.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Mapping
from types import MappingProxyType

from rlready.envs.base import Script
from rlready.types import Task
from rlready.worlds.tau2.actions import CALLS

Play = Generator[str, str, None]

DEMONSTRATIONS: Mapping[str, float] = MappingProxyType({"look_partial": 7.0, "blind": 2.0, "spliced": 1.0})
"""Relative weights of a mixture of mixed quality: several strategies have weight, so RL has a choice to make."""


def random_play(stop: float = 0.06) -> Script:
    """Any action, uniformly; before each step it stops with probability `stop`."""
    actions = list(CALLS)

    def script(task: Task, rng: random.Random) -> Play:
        while rng.random() >= stop:
            yield rng.choice(actions)

    return script


def blind(undo: bool = False) -> Script:
    """Every fix that the ticket makes plausible, in random order, without looking first.

    Args:
        undo: read the reply to a switch, and switch back where it is now in the wrong position.
    """

    def script(task: Task, rng: random.Random) -> Play:
        for action in _blind_plan(task, rng):
            reply = (yield action).split()
            if undo and _WRONG.get(action) in reply:
                yield action

    return script


def look(skip: float = 0.0, *, shuffle: bool = False) -> Script:
    """Look first, then fix what is wrong, component by component.

    Args:
        skip: probability that a component is left out.
        shuffle: take the components in random order rather than the same one always.
    """

    def script(task: Task, rng: random.Random) -> Play:
        yield from _look(task, rng, skip, shuffle)

    return script


def look_partial(most: float = 0.45) -> Script:
    """Look, then fix, in random order; each episode draws, up to `most`, the share of components it leaves out."""

    def script(task: Task, rng: random.Random) -> Play:
        yield from _look(task, rng, rng.uniform(0, most), True)

    return script


def spliced(most: float = 0.45) -> Script:
    """A few blind fixes first, then looking and fixing (in random order, with parts left out)."""

    def script(task: Task, rng: random.Random) -> Play:
        plan = _blind_plan(task, rng)
        yield from _each(*plan[: rng.randint(1, len(plan) // 2)])
        yield from _look(task, rng, rng.uniform(0, most), True)

    return script


SCRIPTS: Mapping[str, Script] = MappingProxyType(
    {
        "random": random_play(),
        "blind": blind(),
        "blind_undo": blind(undo=True),
        "look": look(),
        "look_shuffled": look(shuffle=True),
        "look_skip10": look(0.10, shuffle=True),
        "look_skip25": look(0.25, shuffle=True),
        "look_partial": look_partial(),
        "spliced": spliced(),
    }
)

_WRONG = {
    "toggle_airplane_mode": "air_on",
    "toggle_data": "mdata_off",
    "toggle_roaming": "roam_off",
    "toggle_data_saver_mode": "saver_on",
    "toggle_wifi_calling": "wcall_on",
}


def _blind_plan(task: Task, rng: random.Random) -> list[str]:
    """All plausible fixes in random order; a reboot always comes after the reset of the access point."""
    words = task.prompt[0].text.split()
    if "t_service" in words:
        plan = ["toggle_airplane_mode", "reseat_sim_card", "reset_apn_settings", "reboot_device"]
        plan += ["ask_payment", "make_payment", "resume_line"]
    else:
        plan = ["toggle_airplane_mode", "toggle_data", "refuel_2", "set_4g_5g_preferred"]
        plan += ["toggle_roaming", "enable_roaming"] if "abroad" in words else []
        if "t_data" in words:
            plan += ["toggle_data_saver_mode", "disconnect_vpn"]
        else:
            plan += ["reseat_sim_card", "toggle_wifi_calling", "reset_apn_settings", "reboot_device"]
            plan += ["grant_sms", "grant_storage"]
    rng.shuffle(plan)
    if "reboot_device" in plan:
        plan.remove("reboot_device")
        plan.insert(rng.randint(plan.index("reset_apn_settings") + 1, len(plan)), "reboot_device")
    return plan


def _look(task: Task, rng: random.Random, skip: float, shuffle: bool) -> Play:
    """The common part of the looking scripts: an overview, then the components."""
    words = task.prompt[0].text.split()
    if "t_mms" in words and rng.random() < 0.3:
        yield "can_mms"
    if "t_data" in words and rng.random() < 0.3:
        yield "speed_test"
    seen = (yield "check_network_status").split()
    todo: list[Callable[[], Play]] = []
    if "air_on" in seen:
        todo.append(lambda: _each("toggle_airplane_mode"))
    if "sim_missing" in seen:
        todo.append(lambda: _each("reseat_sim_card"))
    if "t_service" in words:
        todo += [_access_point, _line]
    else:
        if "data_off" in seen:
            todo.append(lambda: _each("toggle_data"))
        if "abroad" in words and "roam_off" in seen:
            todo.append(lambda: _each("toggle_roaming"))
        todo += [_usage, _mode]
        todo += [_line_roaming] if "abroad" in words else []
        todo += [_saver, _vpn] if "t_data" in words else [_wifi_calling, _permissions, _access_point]
    todo = [component for component in todo if rng.random() >= skip]
    if shuffle:
        rng.shuffle(todo)
    for component in todo:
        yield from component()


def _each(*actions: str) -> Play:
    for action in actions:  # noqa: UP028  (a tuple cannot take the replies that are sent)
        yield action


def _if_seen(check: str, bad: str, fix: str) -> Callable[[], Play]:
    def component() -> Play:
        if bad in (yield check).split():
            yield fix

    return component


_usage = _if_seen("get_usage", "used_over", "refuel_2")
_line_roaming = _if_seen("get_line", "line_roam_off", "enable_roaming")
_saver = _if_seen("check_data_restriction_status", "saver_on", "toggle_data_saver_mode")
_vpn = _if_seen("check_vpn_status", "vpn_slow", "disconnect_vpn")
_wifi_calling = _if_seen("check_wifi_calling_status", "wcall_on", "toggle_wifi_calling")


def _mode() -> Play:
    if "mode_4g_5g_preferred" not in (yield "check_network_mode_preference").split():
        yield "set_4g_5g_preferred"


def _permissions() -> Play:
    granted = (yield "check_perms").split()
    if "p_sms" not in granted:
        yield "grant_sms"
    if "p_storage" not in granted:
        yield "grant_storage"


def _access_point() -> Play:
    seen = (yield "check_apn_settings").split()
    if "apn_broken" in seen or "mmsc_none" in seen:
        yield "reset_apn_settings"
        yield "reboot_device"


def _line() -> Play:
    if "line_suspended" in (yield "get_line").split():
        yield from _each("ask_payment", "make_payment", "resume_line", "reboot_device")
