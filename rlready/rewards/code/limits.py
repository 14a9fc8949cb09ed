"""What a program may use."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from rlready.errors import UserError

_MB = 1 << 20
_RESERVES = ("julia", "java", "node", "dotnet", "go", "ghc")
"""Programs that reserve far more addresses than they use, and do not start under a limit on those."""


@dataclass(frozen=True)
class Limits:
    """Bounds on one test of a program, all of its processes together unless said otherwise.

    Attributes:
        memory_mb: memory that is really held.
        address_mb: addresses that one process may reserve; 0 for no limit, None for what suits the language.
        processes: processes and threads.
        tmp_mb: files in its private folder, which is also its /tmp and /dev/shm.
        file_mb: one file.
        output_mb: standard output, and standard error; a program that writes more is ended.
        stack_mb: the stack of one process.
        open_files: files open in one process.
    """

    memory_mb: int = 1024
    address_mb: int | None = None
    processes: int = 32
    tmp_mb: int = 64
    file_mb: int = 64
    output_mb: int = 8
    stack_mb: int = 64
    open_files: int = 1024

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        for field in fields(self):
            value = getattr(self, field.name)
            least = {"processes": 4, "open_files": 64, "memory_mb": 32}.get(field.name, 1)
            if field.name == "address_mb" and (value is None or value == 0):
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise UserError(f"{field.name} must be a whole number, {least} or more, not {value!r}.")

    def of_cell(self, program: str, seconds: float, processes: bool) -> dict[str, int]:
        """The limits as a cell sets them, in bytes.

        Args:
            program: the program that is started, whose needs differ.
            seconds: wall-clock limit, which bounds the processor time of each process as well.
            processes: whether the number of processes is counted per cell here.
        """
        limits = {
            "file": self.file_mb * _MB,
            "stack": self.stack_mb * _MB,
            "open_files": self.open_files,
            "cpu": math.ceil(seconds) + 2,
            "core": 0,
            "locked": 0,
        }
        if processes:
            limits["processes"] = self.processes + 1  # the cell's own
        address = self.address_mb
        if address is None:
            address = 0 if program.rpartition("/")[2] in _RESERVES else max(2048, 2 * self.memory_mb)
        if address:
            limits["address"] = address * _MB
        return limits

    @property
    def memory(self) -> int:
        """Memory in bytes."""
        return self.memory_mb * _MB

    @property
    def output(self) -> int:
        """Output in bytes."""
        return self.output_mb * _MB
