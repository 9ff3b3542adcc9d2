"""specrt: a speculative-decoding-first inference runtime for structured tool-call output."""

from __future__ import annotations

from pathlib import Path

__version__ = "0.1.0"

# A wheel holds kernels, grammars, draft_heads and train inside specrt/; a checkout has them beside
# it. They have no top-level import name: "kernels" would shadow a package that transformers imports.
_root = Path(__file__).resolve().parents[1]
if (_root / "serve.py").is_file() and (_root / "pyproject.toml").is_file():
    __path__.append(str(_root))


def __getattr__(name: str) -> object:
    # `from specrt import LLM` without `import specrt` paying for torch.
    if name == "LLM":
        from specrt.llm import LLM

        return LLM
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
