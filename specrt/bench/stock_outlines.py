"""outlines-core the way its documentation shows: schema to regex, regex to an index of tokens.

Runs in a worker process, since some schemas never come to their end.
"""

from __future__ import annotations

import time
from functools import lru_cache

from outlines_core import Index, Vocabulary
from outlines_core.json_schema import build_regex_from_schema

from specrt.bench.vocabulary import load_vocabulary


@lru_cache(maxsize=1)
def _stock_vocabulary(model_path: str | None) -> Vocabulary:
    vocabulary = load_vocabulary(model_path)
    ids: dict[bytes, list[int]] = {}
    for token_id, text in enumerate(vocabulary.token_bytes):
        if text:
            ids.setdefault(text, []).append(token_id)
    return Vocabulary(vocabulary.eos_token_ids[0], ids)


def get_ready(model_path: str | None) -> None:
    """Read the vocabulary, so that no schema pays for it."""
    _stock_vocabulary(model_path)


def compile_ms(schema: str, model_path: str | None) -> float | None:
    """Milliseconds to compile one schema, None when it is refused.

    Args:
        schema: JSON text.
        model_path: whose tokenizer.
    """
    vocabulary = _stock_vocabulary(model_path)
    start = time.perf_counter()
    try:
        Index(build_regex_from_schema(schema), vocabulary)
    except Exception:  # it raises ValueError, TypeError and its own
        return None
    return 1000 * (time.perf_counter() - start)
