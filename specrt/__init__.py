"""specrt: a speculative-decoding-first inference runtime for structured tool-call output."""

from __future__ import annotations

import os
from pathlib import Path

__version__ = "0.1.0"

# OpenMP reads this when torch is imported. By default its threads spin while they wait for each
# other; with any other work on the machine a pass of SmolLM2 then takes seconds (2 cores, one of
# them busy: 1.8 s a pass spinning, 0.17 s sleeping).
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# A wheel holds kernels, grammars, draft_heads and train inside specrt/; a checkout has them beside
# it. They have no import name of their own: "kernels" would shadow a package that transformers
# imports.
_root = Path(__file__).resolve().parents[1]
if (_root / "serve.py").is_file() and (_root / "pyproject.toml").is_file():
    __path__.append(str(_root))


def __getattr__(name: str) -> object:
    # `from specrt import LLM` without `import specrt` paying for torch.
    if name == "LLM":
        from specrt.llm import LLM

        return LLM
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
