"""The 45 action words and the real tool call behind each.

In the benchmark an agent first looks up the customer by phone number; every telecom task concerns the same customer,
line and (where there is one) overdue bill, so the identifiers are constants here and an action is one word: 18
checks, 26 fixes with their arguments bound, and `done`. All are always allowed; what the tools refuse comes back as
an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

CUSTOMER = "C1001"
LINE = "L1002"
BILL = "B1234321"
"""The identifier that the benchmark gives to the overdue bill of every suspension task."""

CLOSING = "done"


@dataclass(frozen=True, slots=True)
class Call:
    """One tool of the benchmark with its arguments."""

    tool: str
    arguments: Mapping[str, str | float] = field(default_factory=dict)


_ON_LINE: Mapping[str, str | float] = {"customer_id": CUSTOMER, "line_id": LINE}

_CHECKS: dict[str, Call] = {
    "check_status_bar": Call("check_status_bar"),
    "check_network_status": Call("check_network_status"),
    "check_network_mode_preference": Call("check_network_mode_preference"),
    "check_sim_status": Call("check_sim_status"),
    "check_data_restriction_status": Call("check_data_restriction_status"),
    "check_apn_settings": Call("check_apn_settings"),
    "check_wifi_status": Call("check_wifi_status"),
    "check_wifi_calling_status": Call("check_wifi_calling_status"),
    "check_vpn_status": Call("check_vpn_status"),
    "check_installed_apps": Call("check_installed_apps"),
    "check_payment_request": Call("check_payment_request"),
    "check_perms": Call("check_app_permissions", {"app_name": "messaging"}),
    "check_browser": Call("check_app_permissions", {"app_name": "browser"}),
    "speed_test": Call("run_speed_test"),
    "can_mms": Call("can_send_mms"),
    "get_line": Call("get_details_by_id", {"id": LINE}),
    "get_usage": Call("get_data_usage", _ON_LINE),
    "get_bills": Call("get_bills_for_customer", {"customer_id": CUSTOMER}),
}

_FIXES: dict[str, Call] = {
    "toggle_airplane_mode": Call("toggle_airplane_mode"),
    "toggle_data": Call("toggle_data"),
    "toggle_roaming": Call("toggle_roaming"),
    "toggle_data_saver_mode": Call("toggle_data_saver_mode"),
    "toggle_wifi": Call("toggle_wifi"),
    "toggle_wifi_calling": Call("toggle_wifi_calling"),
    "reseat_sim_card": Call("reseat_sim_card"),
    "reset_apn_settings": Call("reset_apn_settings"),
    "reboot_device": Call("reboot_device"),
    "connect_vpn": Call("connect_vpn"),
    "disconnect_vpn": Call("disconnect_vpn"),
    "make_payment": Call("make_payment"),
    "set_4g_5g_preferred": Call("set_network_mode_preference", {"mode": "4g_5g_preferred"}),
    "set_4g_only": Call("set_network_mode_preference", {"mode": "4g_only"}),
    "set_3g_only": Call("set_network_mode_preference", {"mode": "3g_only"}),
    "set_2g_only": Call("set_network_mode_preference", {"mode": "2g_only"}),
    "grant_sms": Call("grant_app_permission", {"app_name": "messaging", "permission": "sms"}),
    "grant_storage": Call("grant_app_permission", {"app_name": "messaging", "permission": "storage"}),
    "grant_network": Call("grant_app_permission", {"app_name": "messaging", "permission": "network"}),
    "enable_roaming": Call("enable_roaming", _ON_LINE),
    "disable_roaming": Call("disable_roaming", _ON_LINE),
    "refuel_1": Call("refuel_data", {**_ON_LINE, "gb_amount": 1.0}),
    "refuel_2": Call("refuel_data", {**_ON_LINE, "gb_amount": 2.0}),
    "ask_payment": Call("send_payment_request", {"customer_id": CUSTOMER, "bill_id": BILL}),
    "resume_line": Call("resume_line", _ON_LINE),
    "suspend_line": Call("suspend_line", {**_ON_LINE, "reason": "user"}),
}

CALLS: Mapping[str, Call] = MappingProxyType(_CHECKS | _FIXES)
CHECKS: tuple[str, ...] = tuple(_CHECKS)
FIXES: tuple[str, ...] = tuple(_FIXES)
ACTIONS: tuple[str, ...] = (*CHECKS, *FIXES, CLOSING)
