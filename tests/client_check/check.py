"""`make client-check`: the clients' own API tests, from their source packages, against specrt.

The tests of openai-python and anthropic-sdk-python are written for a mock server that answers
everything; `refused.json` lists each case that specrt refuses, with its reason. The versions are
those that are installed. Nothing of the source packages is copied into the repository.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import re
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# Package -> its test files, and what its clients expect behind the server's address.
SUITES = {
    "openai": (
        ["tests/api_resources/chat/test_completions.py", "tests/api_resources/test_completions.py"],
        "/v1",
    ),
    "anthropic": (["tests/api_resources/test_messages.py"], ""),
}
# Most cases ask for as many tokens as the context has room for.
CONTEXT = 64


def fetch(package: str, folder: Path) -> Path:
    """The unpacked source package of the installed version; downloaded once.

    Args:
        package: its name.
        folder: keeps it.
    """
    name = f"{package}-{version(package)}"
    if not (folder / name).is_dir():
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", package]
        command += ["--dest", str(folder), f"{package}=={version(package)}"]
        subprocess.run(command, check=True)
        # Unpacked beside, so that a folder of the right name is a whole one.
        with tarfile.open(folder / f"{name}.tar.gz") as archive:
            archive.extractall(folder / f"{name}.part", filter="data")
        (folder / f"{name}.part" / name).rename(folder / name)
        (folder / f"{name}.part").rmdir()
    return folder / name


def model_names(folders: dict[str, Path]) -> list[str]:
    """The model names that the tests ask for."""
    texts = [
        (folders[package] / file).read_text(encoding="utf-8")
        for package, (files, _) in SUITES.items()
        for file in files
    ]
    names = re.findall(r'model="([^"]+)"', "".join(texts))
    deprecated = importlib.import_module("anthropic.resources.messages").DEPRECATED_MODELS
    return list(dict.fromkeys([*names, *deprecated]))


@contextlib.contextmanager
def serving(names: list[str], log: Path) -> Iterator[str]:
    """A server with the embedded model under these names; its address."""
    command = [sys.executable, str(ROOT / "serve.py"), "--port", "0"]
    command += ["--served-model-name", ",".join(names), "--context-length", str(CONTEXT)]
    with (
        log.open("w") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as server,
    ):
        assert server.stdout is not None
        found = re.search(r"http://\S+(?=/v1)", server.stdout.readline())
        try:
            if found is None:
                raise SystemExit(f"the server did not come up; see {log}")
            yield found[0]
        finally:
            server.send_signal(signal.SIGINT)


def run_suite(package: str, folder: Path, address: str, arguments: list[str]) -> int:
    """Run the tests of a package; pytest's exit status."""
    files, path = SUITES[package]
    # Their settings, but for the distribution over processes: the server is the bottleneck.
    command = [sys.executable, "-m", "pytest", "-c", "pyproject.toml", "-o", "addopts=--tb=short"]
    command += ["-q", "-p", "refusals", "--refused", str(HERE / "refused.json")]
    if (folder / "tests" / "_alias_httpx.py").is_file():
        command += ["-p", "tests._alias_httpx"]
    command += ["--client", package, *arguments, *files]
    environment = {
        **os.environ,
        "TEST_API_BASE_URL": address + path,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")])),
    }
    print(f"{package} {version(package)}", flush=True)
    return subprocess.run(command, cwd=folder, env=environment).returncode


def main(argv: list[str]) -> int:
    """Fetch, serve, run; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="where the source packages are kept")
    options, arguments = parser.parse_known_args(argv)
    options.folder.mkdir(parents=True, exist_ok=True)
    folders = {package: fetch(package, options.folder.resolve()) for package in SUITES}
    with serving(model_names(folders), options.folder / "server.log") as address:
        statuses = [run_suite(package, folders[package], address, arguments) for package in SUITES]
    return max(statuses)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
