"""Async tests run on asyncio only: the server does. And one live server for all that need one."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from specrt.errors import ConfigError
from specrt.model.embedded import EMBEDDED_NAME, find_embedded

# Clients may ask for the model by this name, too.
ALIAS = "gpt-alias"


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def live_url() -> Iterator[str]:
    """`specrt serve` with the embedded model, as a process with its engine; its address."""
    try:
        find_embedded()
    except ConfigError as error:
        pytest.skip(f"needs the embedded model: {error}")
    command = [sys.executable, "-m", "specrt", "serve", "--port", "0", "--num-threads", "1"]
    command += ["--max-total-tokens", "4096", "--check-cache"]
    command += ["--served-model-name", f"{EMBEDDED_NAME},{ALIAS}"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    with server:  # waits for its end, whatever happens
        assert server.stdout is not None
        found = re.search(r"http://\S+(?=/v1)", server.stdout.readline())
        if found:
            yield found[0]
        server.send_signal(signal.SIGTERM)
        assert server.wait(20) == 0, "it did not come up, or ended badly"
