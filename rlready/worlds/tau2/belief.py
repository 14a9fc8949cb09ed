"""What a reader of telecom logs knows: which facts there are, what an action changes, what a reply reveals.

A *fact* is one thing that can be wrong with the phone or its line at the start, such as `sim` (no card seated) or
`usage` (the data allowance is used up). `Belief` follows one episode. For each fact it holds the present value (None
while unknown) and how that relates to the start: unchanged, inverted (a switch was toggled an odd number of times),
or no longer related (set to a known value). So a reply late in the episode can still reveal the start. Given a
complete start, the same class follows the open problems step by step.

Everything here is read from the words of a log. That makes it usable as a programmatic teacher for an experience
model: it knows what phone settings mean, not what the simulator holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Value = bool | str
"""True where the fact is a problem; for `mode` the preferred network, one of 5g, 4g, 3g, 2g."""

FACTS: tuple[str, ...] = (
    "airplane",
    "sim",
    "simlock",
    "apn",
    "line",
    "bill",
    "data",
    "roam",
    "lroam",
    "usage",
    "mode",
    "wcall",
    "mmsc",
    "sms",
    "storage",
    "saver",
    "vpn",
)
MODES: tuple[str, ...] = ("m2g", "m3g", "m4g")
PENDING = "pend"
"""The access point will be reset at the next reboot: not a problem, but a thing left to do."""

_TOGGLES = {
    "toggle_airplane_mode": "airplane",
    "toggle_data": "data",
    "toggle_roaming": "roam",
    "toggle_data_saver_mode": "saver",
    "toggle_wifi_calling": "wcall",
}
_SETS: Mapping[str, tuple[str, Value]] = {
    "set_4g_5g_preferred": ("mode", "5g"),
    "set_4g_only": ("mode", "4g"),
    "set_3g_only": ("mode", "3g"),
    "set_2g_only": ("mode", "2g"),
    "grant_sms": ("sms", False),
    "grant_storage": ("storage", False),
    "reseat_sim_card": ("sim", False),
}
_SEARCHING = {
    "toggle_airplane_mode",
    "toggle_data",
    "toggle_roaming",
    "reseat_sim_card",
    "reset_apn_settings",
    "reboot_device",
    *(a for a in _SETS if a.startswith("set_")),
}
"""Actions after which the phone searches for a network, and so notices a suspended or resumed line."""

_REVEALS: Mapping[str, tuple[tuple[str, Value], ...]] = {
    "air_on": (("airplane", True),),
    "air_off": (("airplane", False),),
    "bar_airplane": (("airplane", True),),
    "mdata_on": (("data", False),),
    "mdata_off": (("data", True),),
    "roam_on": (("roam", False),),
    "roam_off": (("roam", True),),
    "sim_missing": (("sim", True),),
    "sim_active": (("sim", False), ("simlock", False)),
    "sim_locked": (("sim", False), ("simlock", True)),
    "mode_4g_5g_preferred": (("mode", "5g"),),
    "mode_4g_only": (("mode", "4g"),),
    "mode_3g_only": (("mode", "3g"),),
    "mode_2g_only": (("mode", "2g"),),
    "saver_on": (("saver", True),),
    "saver_off": (("saver", False),),
    "apn_broken": (("apn", True),),
    "apn_ok": (("apn", False),),
    "mmsc_none": (("mmsc", True),),
    "mmsc_ok": (("mmsc", False),),
    "wcall_on": (("wcall", True),),
    "wcall_off": (("wcall", False),),
    "line_suspended": (("line", True),),
    "line_active": (("line", False),),
    "line_roam_off": (("lroam", True),),
    "line_roam_on": (("lroam", False),),
    "bill_overdue": (("bill", True),),
}
"""Words that mean the same wherever they stand: the present value of facts."""


def facts_of(ticket: str) -> tuple[str, ...]:
    """The facts that can stand in the way of this ticket's goal, in fixed order.

    Args:
        ticket: the ticket's words, such as "t_mms abroad".
    """
    words = ticket.split()
    if "t_service" in words:
        chosen = {"airplane", "sim", "simlock", "apn", "line", "bill"}
    else:
        chosen = {"airplane", "sim", "simlock", "data", "usage", "mode"}
        chosen |= {"roam", "lroam"} if "abroad" in words else set()
        chosen |= {"saver", "vpn"} if "t_data" in words else {"wcall", "apn", "mmsc", "sms", "storage"}
    return tuple(f for f in FACTS if f in chosen)


def is_problem(fact: str, value: Value, ticket: str) -> bool:
    """Whether a value of a fact stands in the way. A data ticket wants 5G speed; picture messages need more than 2G."""
    if fact != "mode":
        return bool(value)
    return value != "5g" if "t_data" in ticket else value == "2g"


class Belief:
    """One episode's state as its log tells it."""

    def __init__(self, ticket: str, start: Mapping[str, Value] | None = None) -> None:
        """Before the first action.

        Args:
            ticket: the ticket's words.
            start: values of all facts of the ticket, to follow the open problems; None to find out what the log
                reveals.
        """
        self.ticket = ticket
        self.facts = facts_of(ticket)
        self.start: dict[str, Value] = dict(start or {})
        self._now: dict[str, Value | None] = {f: self.start.get(f) for f in FACTS}
        self._link: dict[str, Literal[-1, 0, 1]] = dict.fromkeys(FACTS, 1)
        for fact in FACTS:
            if fact not in self.facts:  # never wrong at the start, or of no matter to this ticket
                self._now[fact] = "5g" if fact == "mode" else False
        self._line_seen = self._now["line"]  # the line's state at the last network search
        self._refueled = 0
        self._pending = False

    def step(self, action: str, reply: str) -> None:
        """Take in one action and its reply (status words)."""
        words = set(reply.split())
        if "error" in words:
            self._refused(action, words)
            return
        self._apply(action, words)
        if action in _SEARCHING:
            self._line_seen = self._now["line"]
        self._observe(action, words)

    def open(self) -> list[str]:
        """The problems that are known to be open, in fixed order, then `pend` where a reboot is due."""
        out = []
        for fact in FACTS:
            if fact not in self.facts and fact != "line":  # a line can be suspended by the agent, whatever the ticket
                continue
            value = self._line_seen if fact == "line" else self._now[fact]
            if fact == "usage":  # the benchmark wants 2 GB exactly, where data had run out
                is_open = value is True and self._refueled != 2
            elif fact in ("wcall", "vpn"):  # harmless unless it was so at the start
                is_open = value is True and self.start.get(fact) is True
            else:
                is_open = value is not None and is_problem(fact, value, self.ticket)
            if is_open:
                out.append(f"m{value}" if fact == "mode" else fact)
        return out + ([PENDING] if self._pending else [])

    def _learn(self, fact: str, value: Value) -> None:
        """The present value is known; so is the start, unless it was overwritten."""
        self._now[fact] = value
        if fact in self.facts and fact not in self.start and self._link[fact] != 0:
            self.start[fact] = value if self._link[fact] == 1 else not value

    def _assign(self, fact: str, value: Value) -> None:
        """An action set the value; from here on it says nothing about the start."""
        self._now[fact] = value
        self._link[fact] = 0

    def _flip(self, fact: str) -> None:
        now = self._now[fact]
        self._now[fact] = None if now is None else not now
        self._link[fact] = 1 if self._link[fact] == -1 else -1 if self._link[fact] == 1 else 0

    def _refused(self, action: str, words: set[str]) -> None:
        if "not_suspended" in words:
            self._learn("line", False)
        elif "not_active" in words:
            self._learn("line", True)
        elif action == "ask_payment" and "not_found" in words:
            self._learn("bill", False)

    def _apply(self, action: str, words: set[str]) -> None:
        """What the action changed, and what its reply says of the value before."""
        if action in _TOGGLES:
            self._flip(_TOGGLES[action])
            if "air_on" in words:  # flight mode cuts the VPN
                self._assign("vpn", False)
        elif action in _SETS:
            self._assign(*_SETS[action])
        elif action in ("enable_roaming", "disable_roaming"):
            after = action == "disable_roaming"
            self._learn("lroam", after if "already" in words else not after)
            self._assign("lroam", after)
        elif action in ("resume_line", "suspend_line"):
            self._learn("line", action == "resume_line")
            self._assign("line", action == "suspend_line")
        elif action == "connect_vpn":
            self._learn("vpn", "vpn_already" in words)
            self._assign("vpn", True)
        elif action == "disconnect_vpn":
            self._learn("vpn", "vpn_off" in words)
            self._assign("vpn", False)
        elif action in ("refuel_1", "refuel_2"):
            self._refueled += int(action[-1])
        elif action == "reset_apn_settings":
            self._pending = True
        elif action == "reboot_device" and "apn_reset" in words:
            self._pending = False
            self._assign("apn", False)
            self._assign("mmsc", False)
        elif action == "ask_payment":
            self._learn("bill", True)
        elif action == "make_payment" and "paid" in words:
            self._assign("bill", False)

    def _observe(self, action: str, words: set[str]) -> None:
        """What the reply shows of the values after the action."""
        for word in words & _REVEALS.keys():
            for fact, value in _REVEALS[word]:
                self._learn(fact, value)
        if action == "check_network_status":
            self._learn("data", "data_off" in words)
            self._network({w.removeprefix("tech_") for w in words}, action, "svc_connected" in words)
        elif "bar_airplane" in words or any(w.startswith("sig_") for w in words):
            self._bar(words, action)
        if action == "check_perms":
            self._learn("sms", "p_sms" not in words)
            self._learn("storage", "p_storage" not in words)
        elif action == "get_usage" and ("used_over" in words or self._refueled == 0):
            self._learn("usage", "used_over" in words)
        elif action == "get_bills" and "bill_ok" in words:
            self._learn("bill", False)
        elif action == "check_vpn_status":
            self._learn("vpn", "vpn_off" not in words)
        elif "mms_yes" in words:
            self._works()
            for fact in ("mmsc", "sms", "storage"):
                self._learn(fact, False)
            if self._link["wcall"] == 1:
                self._learn("wcall", False)
            if self._now["mode"] is None and "t_mms" in self.ticket:
                self._learn("mode", "5g")  # or another that is fast enough, which is all that counts here
        elif action == "speed_test" and "no_connection" not in words:
            self._works()
            if "speed_excellent" in words:
                self._learn("mode", "5g")
                self._learn("saver", False)
                if self._link["vpn"] == 1:
                    self._learn("vpn", False)

    def _bar(self, words: set[str], action: str) -> None:
        """A status bar. What it says of mobile data and data saver counts only beside a network technology."""
        if action != "connect_vpn" and action != "disconnect_vpn":
            self._learn("vpn", "vpn_on" in words)
        if "bar_airplane" in words:
            return
        self._learn("airplane", False)
        technologies = words & {"2g", "3g", "4g", "5g"}
        self._network(technologies, action, bool(technologies))
        if technologies:
            self._learn("data", "data_on" not in words)
            if "data_on" in words:
                self._learn("saver", "saver_on" in words)

    def _network(self, words: set[str], action: str, connected: bool) -> None:
        """A connection shows that nothing stood in its way at the last search, and which mode the phone prefers."""
        if not connected:
            return
        for fact in ("airplane", "sim", "simlock", "apn"):
            self._learn(fact, False)
        if action in _SEARCHING or self._link["line"] == 1:
            self._learn("line", False)
        for technology in ("2g", "3g", "4g", "5g"):
            if technology in words:
                self._learn("mode", technology)

    def _works(self) -> None:
        """Mobile data works: there is a connection, and data is on, allowed where the customer is, and not used up."""
        for fact in ("airplane", "sim", "simlock", "apn", "data", "roam", "lroam"):
            self._learn(fact, False)
        if self._refueled == 0:
            self._learn("usage", False)
