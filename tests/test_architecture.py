"""The import direction and the layout, read from the sources."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TOP_FOLDERS = ("draft_heads", "grammars", "kernels", "train")

# Each line may import the lines below it and its own package, nothing above and nothing beside.
LAYERS = (
    ("__main__", "serve"),
    ("cli", "__init__"),
    ("server", "train", "grammar_check"),
    ("bench", "chat"),
    ("async_engine", "llm"),
    ("engine_process",),
    ("engine",),
    ("scheduler", "worker", "text_output"),
    ("speculative",),
    ("draft_heads",),
    ("model", "sampling"),
    ("attention", "grammars"),
    ("cache", "tokenizer"),
    ("messages", "plan", "draft_tree"),
    ("request",),
    ("grammars.base",),
    ("config", "progress"),
    ("errors",),
)
# Open to all, but bound to the bottom themselves.
KERNEL_IMPORTS = {"torch", "triton", "numpy", "__future__", *sys.stdlib_module_names}
ENTRANCES = ("server", "bench", "train", "chat")
TORCH_FREE = (
    "specrt.cache.manager",
    "specrt.cache.radix_tree",
    "specrt.cache.slots",
    "specrt.draft_tree",
    "specrt.plan",
    "specrt.request",
    "specrt.scheduler",
)


def _sources() -> Iterator[tuple[str, Path]]:
    """(module name below specrt, file) of everything that is installed, and serve.py."""
    yield "serve", ROOT / "serve.py"
    for path in sorted((ROOT / "specrt").rglob("*.py")):
        yield ".".join(path.relative_to(ROOT / "specrt").with_suffix("").parts), path
    for folder in TOP_FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield ".".join(path.relative_to(ROOT).with_suffix("").parts), path


SOURCES = dict(_sources())


def _imports(path: Path) -> Iterator[str]:
    """Absolute names of everything that a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                is_module = name.startswith("specrt.") and _is_module(name.removeprefix("specrt."))
                yield name if is_module else node.module


def _is_module(name: str) -> bool:
    return name in SOURCES or any(known.startswith(name + ".") for known in SOURCES)


def _layer(name: str) -> int:
    """Index in LAYERS of the longest entry that holds `name`."""
    found = [
        (len(entry), index)
        for index, layer in enumerate(LAYERS)
        for entry in layer
        if name == entry or name.startswith(entry + ".")
    ]
    assert found, f"specrt.{name} has no place in LAYERS"
    return max(found)[1]


def _violations(name: str, imported: list[str]) -> list[str]:
    """Imports of module `name` that the direction forbids."""
    wrong = []
    package = name.split(".")[0]
    for target in imported:
        if package == "kernels":
            is_own = target.startswith("specrt.kernels")
            if not is_own and target.split(".")[0] not in KERNEL_IMPORTS:
                wrong.append(f"{name} imports {target}: kernels know only torch, triton and numpy")
            continue
        if target == "specrt" or not target.startswith("specrt."):
            continue
        target = target.removeprefix("specrt.")
        target_package = target.split(".")[0]
        if target_package == "kernels" or (target_package == package and name != "grammars.base"):
            continue
        if _layer(target) <= _layer(name) and name != "__init__":
            wrong.append(f"{name} imports {target}: against the direction")
        if target_package in ENTRANCES and (package, target_package) not in {
            ("cli", target_package),
            ("train", "bench"),
            ("grammar_check", "bench"),
        }:
            wrong.append(f"{name} imports {target}: only cli may")
    return wrong


def test_imports_run_one_way() -> None:
    wrong = [w for name, path in SOURCES.items() for w in _violations(name, [*_imports(path)])]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("scheduler", "specrt.engine"),
        ("worker", "specrt.scheduler"),
        ("cache.slots", "specrt.model.decoder"),
        ("grammars.base", "specrt.grammars.compiler"),
        ("engine", "specrt.bench.traces"),
        ("server.app", "specrt.bench.traces"),
        ("kernels.linear", "specrt.config"),
        ("kernels.linear", "transformers"),
    ],
)
def test_the_rule_sees_a_wrong_import(name: str, target: str) -> None:
    assert _violations(name, [target])


def test_cli_imports_the_entrances_lazily() -> None:
    """At module level only the light option dataclasses may be met, and those inside a function."""
    tree = ast.parse((ROOT / "specrt" / "cli.py").read_text(encoding="utf-8"))
    for node in tree.body:
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            assert name.split(".")[1:2] not in [[entrance] for entrance in ENTRANCES]


def test_scheduling_runs_without_torch() -> None:
    speculative = [f"specrt.{name}" for name in SOURCES if name.startswith("speculative.")]
    modules = [name for name in (*TORCH_FREE, *speculative) if not name.endswith("__init__")]
    code = f"import sys, {', '.join(modules)}\nassert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_names_say_what_is_inside() -> None:
    vague = {"utils", "util", "helpers", "common", "misc"}
    assert not [path for path in SOURCES.values() if path.stem in vague]


def test_top_folders_are_no_packages_of_their_own() -> None:
    """With an __init__.py, `kernels` would be found in place of the one transformers imports."""
    assert not [folder for folder in TOP_FOLDERS if (ROOT / folder / "__init__.py").exists()]


def _text_files() -> Iterator[tuple[Path, str]]:
    """Every text file of the project: what git would commit, or all but build outputs."""
    if (ROOT / ".git").exists():
        command = ["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard", "-z"]
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        paths = [ROOT / name for name in listed.split("\0") if name]
    else:
        skipped = {".venv", "build", "dist", ".types", "__pycache__"}
        paths = []
        for folder, folders, names in os.walk(ROOT):
            folders[:] = [name for name in folders if name not in skipped]
            paths += [Path(folder) / name for name in names]
    for path in paths:
        if path.is_file() and path.stat().st_size < 2**20:
            try:
                yield path, path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue


def test_no_file_names_a_package_host_or_a_machine_path() -> None:
    # Put together here, so that this file passes too.
    hosts = ["pypi" + ".org", "pypi.python" + ".org", "python" + "hosted", "download.py" + "torch"]
    folders = ["/" + "work/", "/" + "root/", "/" + "home/"]
    found = [
        f"{path.relative_to(ROOT)}: {word}"
        for path, text in _text_files()
        for word in hosts + folders
        if word in text
    ]
    assert not found, "\n".join(found)
