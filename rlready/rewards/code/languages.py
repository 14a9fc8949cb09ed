"""Programming languages by declaration: a few lines of YAML say how a program is written, compiled and run.

    prompt: Use Lua 5.4.                  what the model is told; may be a long list of pitfalls
    filename: snippet.lua                 where its program is put
    execute: lua5.4 snippet.lua           a shell line, run in a fresh folder with the test's input on stdin
    compile: ...                          optional shell line, run once before the tests
    install: apt-get install -y lua5.4    optional: one shell line, or {container-instructions: ...}, raw lines
    container: {base-image: ..., type: debian}    optional: what a container image is built on

Those of the house lie beside this file; a user's own is named by its path, and no code changes. Any other key is
refused, so that a slip is seen at once and not taken for a setting.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rlready.errors import UserError, did_you_mean

FOLDER = Path(__file__).parent / "languages"
KEYS = ("prompt", "filename", "execute", "compile", "install", "container")
REQUIRED = ("prompt", "filename", "execute")
SEARCH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where programs are looked for: the sandbox has the system's folders, and none of the user's."""

_INSTALL, _CONTAINER = ("container-instructions",), ("base-image", "type")
_PREFIXES = frozenset({"exec", "env", "time"})
_BUILTINS = frozenset({"cd", "export", "set", "ulimit", "umask", "test", "true", "false", "echo", "printf", ":"})


@dataclass(frozen=True)
class Container:
    """What an image for this language is built on.

    Attributes:
        base_image: its name.
        type: family of the distribution, which says how packages are installed.
        instructions: raw lines for the image's build file.
    """

    base_image: str = ""
    type: str = "debian"
    instructions: str = ""


@dataclass(frozen=True)
class Language:
    """A language as its YAML declares it.

    Attributes:
        name: the file's name without its ending.
        prompt: what the model is told about the language.
        filename: where the program is put, a plain file name.
        execute: the shell line that runs it.
        compile: the shell line that compiles it; empty where there is nothing to compile.
        install: the shell line that installs what is needed; empty where the file gives none.
        container: image to build on; None where the file gives none.
        source: the file.
    """

    name: str
    prompt: str
    filename: str
    execute: str
    compile: str = ""
    install: str = ""
    container: Container | None = None
    source: str = ""

    @property
    def suffix(self) -> str:
        """Ending of its files, such as ".lua"."""
        return Path(self.filename).suffix

    @property
    def programs(self) -> tuple[str, ...]:
        """The programs that its lines start, those made by compiling left out."""
        return tuple(dict.fromkeys([*_starts(self.compile), *_starts(self.execute)]))

    @property
    def missing(self) -> tuple[str, ...]:
        """Those of its programs that are not installed where the sandbox looks."""
        return tuple(p for p in self.programs if shutil.which(p, path=SEARCH) is None)

    @property
    def runs_here(self) -> bool:
        """Whether all of its programs are installed."""
        return not self.missing

    @property
    def remedy(self) -> str:
        """What to do about missing programs, as a sentence; empty where none is missing."""
        if not self.missing:
            return ""
        how = f": {self.install}" if self.install else f". Its file gives no install line{_image(self.container)}"
        return f"Install {' and '.join(self.missing)} (looked for in the system's folders){how}"

    def require(self) -> Language:
        """The language itself.

        Raises:
            UserError: a program that it needs is not installed.
        """
        if self.missing:
            raise UserError(f"{self.name} cannot run here. {self.remedy}.")
        return self

    @classmethod
    def load(cls, path: str | Path) -> Language:
        """Read a YAML file.

        Raises:
            UserError: the file cannot be read, or a key is unknown, missing or of the wrong kind; file and key are
                named.
        """
        import yaml

        path = Path(path)
        try:
            record = yaml.safe_load(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}. Name a language's YAML file.") from error
        except UnicodeDecodeError as error:
            raise UserError(f"{path} is no text in UTF-8. Save it as UTF-8.") from error
        except yaml.YAMLError as error:
            raise UserError(f"{path}: {_place(error)}.") from error
        return cls.of(record, str(path), path.stem)

    @classmethod
    def of(cls, record: Any, source: str, name: str) -> Language:
        """From what a YAML file says.

        Raises:
            UserError: as `load`.
        """
        if not isinstance(record, Mapping):
            raise UserError(f"{source} holds no keys. It needs {', '.join(REQUIRED)}.")
        _known(record, KEYS, source)
        for key in REQUIRED:
            if key not in record:
                raise UserError(f'{source}: the key "{key}" is missing. Needed are {", ".join(REQUIRED)}.')
        text = {key: _text(record, key, source) for key in (*REQUIRED, "compile")}
        filename = text["filename"]
        if "/" in filename or "\0" in filename or filename in (".", "..") or filename.startswith("-"):
            raise UserError(f'{source}: "filename" must be a plain file name such as snippet.lua, not {filename!r}.')
        for key in ("execute", "compile"):
            _words(text[key], f'{source}: "{key}"')
        install, instructions = _install(record.get("install"), source)
        container = _container(record.get("container"), instructions, source)
        return cls(name, **text, install=install, container=container, source=source)


@cache
def languages() -> dict[str, Language]:
    """The house's languages by name."""
    return {path.stem: Language.load(path) for path in sorted(FOLDER.glob("*.yaml"))}


def language(name: str | Path | Language) -> Language:
    """A language by its name, or by the path of a YAML file.

    Raises:
        UserError: there is none of that name, or the file is wrong.
    """
    if isinstance(name, Language):
        return name
    text = str(name)
    if isinstance(name, Path) or text.endswith((".yaml", ".yml")) or "/" in text:
        return Language.load(name)
    known = languages()
    if text.lower() not in known:
        raise did_you_mean("language", text, known, see="rlready languages, or the path of a YAML file of your own")
    return known[text.lower()]


def _starts(line: str) -> list[str]:
    """The programs that a shell line starts: the first word of each command, without assignments and builtins."""
    out: list[str] = []
    begins = True
    for word in _words(line, line):
        if word and set(word) <= set("();&|<>"):
            begins = begins or not set(word) & set("<>")  # what follows < or > is a file
        elif begins and "=" not in word and word not in _PREFIXES:
            begins = False
            if word not in _BUILTINS and ("/" not in word or word.startswith("/")):
                out.append(word)
    return out


def _words(line: str, where: str) -> list[str]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        return list(lexer)
    except ValueError as error:
        raise UserError(f"{where} is no shell line ({str(error).lower()}).") from error


def _known(record: Mapping[Any, Any], keys: tuple[str, ...], where: str) -> None:
    for key in record:
        if key not in keys:
            raise UserError(f"{where}: {did_you_mean('key', str(key), keys)}")


def _text(record: Mapping[Any, Any], key: str, where: str) -> str:
    value = record.get(key, "")
    if key in record and (not isinstance(value, str) or not value.strip()):
        raise UserError(f'{where}: "{key}" must be a text that is not empty, not {value!r}.')
    return str(value).strip()


def _install(value: Any, source: str) -> tuple[str, str]:
    """The shell line, and the raw container instructions."""
    if value is None:
        return "", ""
    if isinstance(value, str) and value.strip():
        return value.strip(), ""
    if not isinstance(value, Mapping):
        raise UserError(f'{source}: "install" must be a shell line, or a mapping with {_INSTALL[0]}, not {value!r}.')
    _known(value, _INSTALL, f'{source}: "install"')
    return "", _text(value, _INSTALL[0], f'{source}: "install"')


def _container(value: Any, instructions: str, source: str) -> Container | None:
    if value is None:
        return Container(instructions=instructions) if instructions else None
    if not isinstance(value, Mapping):
        raise UserError(f'{source}: "container" must be a mapping with {" and ".join(_CONTAINER)}, not {value!r}.')
    where = f'{source}: "container"'
    _known(value, _CONTAINER, where)
    kind = _text(value, "type", where) or "debian"
    if kind != "debian":
        raise UserError(f'{where}: "type" is "{kind}"; only debian is known.')
    return Container(_text(value, "base-image", where), kind, instructions)


def _image(container: Container | None) -> str:
    return f"; its image is built on {container.base_image}" if container and container.base_image else ""


def _place(error: Any) -> str:
    """What a YAML error says, with line and column."""
    mark = getattr(error, "problem_mark", None)
    what = str(getattr(error, "problem", None) or error).splitlines()[0]
    return f"line {mark.line + 1}, column {mark.column + 1}: {what}" if mark is not None else what
