"""Files as one block of bytes: how a program reaches a cell, and how what was compiled leaves it.

8 bytes: length of the list    the list as JSON: [[path, size, executable], ...]    the contents, one after another
"""

from __future__ import annotations

import json
import os

MOST_FILES = 256
_DEPTH = 6


def pack(files: dict[str, bytes]) -> bytes:
    """An image of plain files."""
    head = json.dumps([[path, len(content), False] for path, content in files.items()]).encode()
    return b"".join([len(head).to_bytes(8, "little"), head, *files.values()])


def unpack(fd: int, folder: str) -> None:
    """Write the files of an image into a folder."""
    head = os.pread(fd, 8, 0)
    size = int.from_bytes(head, "little")
    at = 8 + size
    for path, length, executable in json.loads(os.pread(fd, size, 8)):
        target = os.path.join(folder, path)
        if "/" in path:
            os.makedirs(os.path.dirname(target), exist_ok=True)
        out = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o755 if executable else 0o644)
        try:
            end = at + length
            while at < end:
                block = os.pread(fd, min(1 << 20, end - at), at)
                if not block:
                    raise OSError("the image is cut off")
                os.write(out, block)
                at += len(block)
        finally:
            os.close(out)


def remove(folder: str) -> None:
    """Remove a folder that holds what `unpack` made, and nothing else."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                remove(entry.path)
            else:
                os.unlink(entry.path)
    os.rmdir(folder)


def pack_folder(folder: str, fd: int, most_bytes: int) -> str:
    """Write what lies in a folder as an image into a file; links are left out. What went wrong, or "".

    The folder's content was made by a program that is not trusted.
    """
    found: list[tuple[str, str, int, bool]] = []
    total = 0
    todo = [("", 0)]
    while todo:
        below, depth = todo.pop()
        with os.scandir(os.path.join(folder, below)) as entries:
            for entry in entries:
                path = os.path.join(below, entry.name)
                if entry.is_symlink():
                    continue
                if entry.is_dir(follow_symlinks=False):
                    if depth < _DEPTH:
                        todo.append((path, depth + 1))
                elif entry.is_file(follow_symlinks=False):
                    stat = entry.stat(follow_symlinks=False)
                    total += stat.st_size
                    found.append((path, entry.path, stat.st_size, bool(stat.st_mode & 0o111)))
                if total > most_bytes or len(found) + len(todo) > MOST_FILES:
                    return "compiling left more files than are taken over"
    head = json.dumps([[path, size, executable] for path, _, size, executable in sorted(found)]).encode()
    os.write(fd, len(head).to_bytes(8, "little") + head)
    for _, place, size, _ in sorted(found):
        source = os.open(place, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            left = size
            while left:
                block = os.read(source, min(1 << 20, left))
                if not block:
                    return "a file changed while it was taken over"
                os.write(fd, block)
                left -= len(block)
        finally:
            os.close(source)
    return ""
