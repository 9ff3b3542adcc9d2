"""What a measurement ran on: machine, versions, commit. Imports nothing that it names."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

from specrt import __version__

_PACKAGES = ("torch", "transformers", "llguidance", "outlines-core", "openai", "numpy")


def environment() -> dict[str, object]:
    """Machine, Python, package versions and git commit, as plain JSON."""
    return {
        "specrt": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": _cpu_name(),
        "cpus": os.cpu_count(),
        "versions": {name: _version(name) for name in _PACKAGES},
    }


def describe(env: dict[str, object]) -> str:
    """One line for the head of a table."""
    commit = env["commit"] or "no checkout"
    return f"specrt {env['specrt']} ({commit}), {env['cpus']} CPUs ({env['cpu']})"


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _commit() -> str | None:
    """Short commit of the checkout that this file lies in, with "+" when files are changed."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    git = ["git", "-C", str(root)]
    try:
        head = subprocess.run(
            [*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True
        )
        status = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True)
    except OSError:
        return None
    if head.returncode != 0:
        return None
    return head.stdout.strip() + ("+" if status.stdout.strip() else "")
