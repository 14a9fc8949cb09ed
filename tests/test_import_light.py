"""`import rlready` is light, and importing any part of it needs none of the optional libraries."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from pathlib import Path

import rlready

HEAVY = {"torch", "ray", "vllm", "transformers", "peft", "fastapi", "wandb", "litellm", "datasets", "pyarrow", "tau2"}


def loaded(code: str) -> set[str]:
    """Top-level names of the modules a fresh interpreter holds after running `code`."""
    code += "\nimport sys; print(*{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120)
    return set(done.stdout.split())


def test_import_rlready_loads_nothing_but_the_standard_library() -> None:
    ours = loaded("import rlready")
    assert not ours & HEAVY
    extra = ours - loaded("") - set(sys.stdlib_module_names)
    assert extra == {"rlready"}


def test_every_module_imports_without_the_optional_libraries() -> None:
    """All at once: an import at the top of any module would show here."""
    names = [m.name for m in pkgutil.walk_packages(rlready.__path__, "rlready.") if not m.name.endswith("__main__")]
    assert len(names) > 100
    code = "import importlib\nfor name in " + repr(names) + ":\n    importlib.import_module(name)"
    assert not loaded(code) & (HEAVY - {"torch"})


def test_imports_run_one_way() -> None:
    root = Path(__file__).parents[1]
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout
