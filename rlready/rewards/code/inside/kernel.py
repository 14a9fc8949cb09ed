"""The few calls of the Linux kernel that Python does not offer: cells, capabilities, the filter of system calls.

A cell is a process in user, process-id and mount namespaces of its own. Its first process sets it up and stays its
process 1; the program it starts has no capabilities, cannot gain any, and ends with the cell whatever it does.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

LIBC = ctypes.CDLL(None, use_errno=True)
NEW_USER, NEW_PIDS, NEW_MOUNTS = 0x10000000, 0x20000000, 0x00020000
NEW_ANY = 0x7E020080  # every kind of namespace
NO_SUID, NO_DEVICES, NO_EXEC, READ_ONLY, REMOUNT, BIND = 2, 4, 8, 1, 32, 4096
_SIGCHLD = 17
_CLONE = {"x86_64": 56, "aarch64": 220}
_PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_SET_CHILD_SUBREAPER = 4, 22, 24, 38, 36
INSIDE_ID = 1000
_UID, _GID = os.getuid(), os.getgid()  # as seen from outside a cell


def _check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def clone_cell() -> int:
    """Fork into a new cell: 0 in the child, the child's pid in the parent.

    Only a process with one thread may call it: it is the bare system call, as os.fork is for a new namespace.
    """
    number = _CLONE.get(os.uname().machine)
    if number is None:
        raise OSError(errno.ENOSYS, f"cells are not known on {os.uname().machine}")
    pid = int(LIBC.syscall(number, NEW_USER | NEW_PIDS | NEW_MOUNTS | _SIGCHLD, 0, 0, 0, 0))
    _check(pid, "clone")
    return pid


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    """Mount a file system."""
    text = [None if t is None else t.encode() for t in (source, target, kind)]
    _check(LIBC.mount(*text, ctypes.c_ulong(flags), options.encode()), f"mount {target}")


def enter_cell(tmp_bytes: int) -> None:
    """Set up the new cell from within: ids, a private /tmp that is also /dev/shm, and its own /proc."""
    write("/proc/self/uid_map", f"{INSIDE_ID} {_UID} 1")
    write("/proc/self/setgroups", "deny")
    write("/proc/self/gid_map", f"{INSIDE_ID} {_GID} 1")
    mount("tmpfs", "/tmp", "tmpfs", NO_SUID | NO_DEVICES, f"size={tmp_bytes},nr_inodes=16384,mode=700")
    mount("/tmp", "/dev/shm", None, BIND)
    mount("proc", "/proc", "proc", NO_SUID | NO_DEVICES | NO_EXEC)


def write(path: str, text: str) -> None:
    """Write to a file of the kernel's, in one go."""
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    except OSError as error:
        raise OSError(error.errno, f"{path}: {error.strerror}") from None
    finally:
        os.close(fd)


def drop_capabilities() -> None:
    """Give up every capability of the calling process for good."""
    header = struct.pack("=Ii", 0x20080522, 0)
    _check(LIBC.capset(header, struct.pack("=6I", 0, 0, 0, 0, 0, 0)), "capset")


def no_new_privileges() -> None:
    """From now on no program started from here gains rights by being started."""
    _check(LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")


def hide_memory() -> None:
    """Other processes cannot trace this one or read its memory."""
    _check(LIBC.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0), "dumpable")


def adopt_orphans() -> None:
    """Processes whose parent ended become children of this one."""
    _check(LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "subreaper")


_DENIED = {
    "x86_64": (
        "ptrace:101 process_vm_readv:310 process_vm_writev:311 kcmp:312 pidfd_getfd:438 process_madvise:440 "
        "mount:165 umount2:166 pivot_root:155 chroot:161 unshare:272 setns:308 open_tree:428 move_mount:429 "
        "fsopen:430 fsconfig:431 fsmount:432 fspick:433 mount_setattr:442 quotactl:179 swapon:167 swapoff:168 "
        "bpf:321 perf_event_open:298 userfaultfd:323 io_uring_setup:425 io_uring_enter:426 io_uring_register:427 "
        "keyctl:250 add_key:248 request_key:249 kexec_load:246 kexec_file_load:320 init_module:175 "
        "finit_module:313 delete_module:176 name_to_handle_at:303 open_by_handle_at:304 reboot:169 syslog:103 "
        "acct:163 settimeofday:164 clock_settime:227 clock_adjtime:305 adjtimex:159 iopl:172 ioperm:173 "
        "sethostname:170 setdomainname:171 lookup_dcookie:212 move_pages:279 memfd_create:319 memfd_secret:447 "
        "shmget:29 shmat:30 shmctl:31 semget:64 msgget:68 mq_open:240 fanotify_init:300 vhangup:153 modify_ldt:154"
    ),
    "aarch64": (
        "ptrace:117 process_vm_readv:270 process_vm_writev:271 kcmp:272 pidfd_getfd:438 process_madvise:440 "
        "mount:40 umount2:39 pivot_root:41 chroot:51 unshare:97 setns:268 open_tree:428 move_mount:429 "
        "fsopen:430 fsconfig:431 fsmount:432 fspick:433 mount_setattr:442 quotactl:60 swapon:224 swapoff:225 "
        "bpf:280 perf_event_open:241 userfaultfd:282 io_uring_setup:425 io_uring_enter:426 io_uring_register:427 "
        "keyctl:219 add_key:217 request_key:218 kexec_load:104 kexec_file_load:294 init_module:105 "
        "finit_module:273 delete_module:106 name_to_handle_at:264 open_by_handle_at:265 reboot:142 syslog:116 "
        "acct:89 settimeofday:170 clock_settime:112 clock_adjtime:266 adjtimex:171 sethostname:161 "
        "setdomainname:162 lookup_dcookie:18 move_pages:239 memfd_create:279 memfd_secret:447 shmget:194 "
        "shmat:196 shmctl:195 semget:190 msgget:186 mq_open:180 fanotify_init:262 vhangup:58"
    ),
}
_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_CALLS = {"x86_64": (56, 435, 41), "aarch64": (220, 435, 198)}  # clone, clone3, socket
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000


def filter_program(machine: str) -> bytes:
    """The filter of system calls for a machine, as the kernel takes it; empty where the machine is not known.

    Refused: tracing, mounting, new namespaces, kernel interfaces that a program of the kind judged here never needs,
    memory that no limit counts (shared segments, memory files), and every socket that is not local.
    """
    if machine not in _ARCHITECTURE:
        return b""
    clone, clone3, socket = _CALLS[machine]
    code: list[tuple[int, int, int, int]] = []

    def refuse(number: int) -> tuple[int, int, int, int]:
        return (_RETURN, 0, 0, _ERROR | number)

    code.append((_LOAD, 0, 0, 4))
    code += [(_EQUAL, 1, 0, _ARCHITECTURE[machine]), refuse(errno.ENOSYS), (_LOAD, 0, 0, 0)]
    if machine == "x86_64":  # numbers of the x32 interface
        code += [(_AT_LEAST, 0, 1, 0x40000000), refuse(errno.ENOSYS)]
    for word in _DENIED[machine].split():
        code += [(_EQUAL, 0, 1, int(word.split(":")[1])), refuse(errno.EPERM)]
    code += [(_EQUAL, 0, 1, clone3), refuse(errno.ENOSYS)]
    code += [(_EQUAL, 0, 4, clone), (_LOAD, 0, 0, 16), (_ANY_BIT, 0, 1, NEW_ANY), refuse(errno.EPERM)]
    code += [(_RETURN, 0, 0, _ALLOW)]
    code += [(_EQUAL, 0, 3, socket), (_LOAD, 0, 0, 16), (_EQUAL, 1, 0, 1), refuse(errno.EACCES)]
    code += [(_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("=HBBI", *line) for line in code)


def filter_calls() -> bool:
    """Set the filter for this process and all that it starts; False where there is none for this machine."""
    if _FILTER.length == 0:
        return False
    _check(LIBC.prctl(_PR_SET_SECCOMP, 2, ctypes.byref(_FILTER), 0, 0), "seccomp")
    return True


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


_CODE = filter_program(os.uname().machine)
_FILTER = _Filter(len(_CODE) // 8, _CODE)
