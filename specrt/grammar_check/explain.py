"""`specrt grammar explain`: what one schema becomes, and what it is worth to a drafter."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from specrt.bench.grammar_sample import Sample, follow, make_sample
from specrt.bench.report import columns, number, share
from specrt.bench.vocabulary import load_vocabulary
from specrt.errors import ConfigError, SchemaError
from specrt.grammar_check.judges import default_separators, spell
from specrt.grammar_check.normal_order import arranged, normal_form, property_orders
from specrt.grammar_check.options import ExplainOptions
from specrt.grammars.base import Grammar, GrammarRecipe
from specrt.grammars.compiler import GrammarCompiler
from specrt.grammars.regions import TurnGrammar
from specrt.grammars.schema.normal import NormalSchema

_MAX_LISTED = 20
_MAX_SHOWN = 400  # characters of the sample
_FEW = 4  # allowed tokens up to which all of them are drafted


def run(schema_path: str, options: ExplainOptions) -> int:
    """Compile a schema and print what it became.

    Args:
        schema_path: JSON file; "-" = standard input.
        options: of the command.

    Returns:
        0, or 1 when the schema is refused or the instance does not satisfy it.

    Raises:
        ConfigError: a file cannot be read, is no JSON, or there is no model.
    """
    document = _read_json("SCHEMA", schema_path)
    instance = None if options.instance is None else _read_json("--instance", options.instance)
    vocabulary = load_vocabulary(options.model_path)
    compiler = GrammarCompiler(vocabulary, backend=options.grammar_backend)
    recipe = GrammarRecipe(kind="json", schema=json.dumps(document), strict=options.strict)
    compiler.compile(GrammarRecipe(kind="json", schema="true"))  # libraries load at first use
    start = time.perf_counter()
    try:
        grammar = compiler.compile(recipe)
    except SchemaError as error:
        print(_refusal(error))
        return 1
    compile_ms = 1000 * (time.perf_counter() - start)
    normal = normal_form(document, strict=options.strict)
    print(_facts(grammar, compile_ms))
    _print_lists(grammar, normal)
    if options.instance is None:
        sample = make_sample(grammar, vocabulary)
    else:
        text = spell(arranged(normal, document, instance), default_separators())
        if text is None:
            raise ConfigError(f"--instance: {options.instance}: not finite numbers and whole text")
        sample = follow(grammar, vocabulary, text)
    print("\n" + _sample_text(sample))
    return 0 if options.instance is None or sample.is_whole else 1


def _read_json(name: str, path: str) -> Any:
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
        return json.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name}: cannot read {path}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{name}: {path}: expected JSON: {error}") from None


def _refusal(error: SchemaError) -> str:
    where = f" at {error.pointer}" if error.pointer else ""
    what = error.keyword or "the schema"
    return f"refused: {what}{where}\n{error.message}"


def _facts(grammar: TurnGrammar, compile_ms: float) -> str:
    rows = [["engine", grammar.engine]]
    rows.append(["states of the automaton", str(grammar.num_states)])
    return columns([*rows, ["compiled in", number(compile_ms, 1, " ms")]])


def _print_lists(grammar: Grammar, normal: NormalSchema | None) -> None:
    orders = [] if normal is None else list(property_orders(normal))
    _print_list(
        "order of properties",
        [f"{pointer or 'top'}: {', '.join(names) or '(none)'}" for pointer, names in orders],
    )
    reasons = {} if normal is None else {f.pointer: f.reason for f in normal.findings}
    _print_list(
        "not enforced",
        [
            f"{entry.pointer or 'top'}: {entry.keyword or 'all of it'}"
            + (f" ({reasons[entry.pointer]})" if entry.pointer in reasons else "")
            for entry in grammar.unenforced
        ],
    )
    annotations = {} if normal is None else normal.annotations
    _print_list(
        "says nothing about a value (annotations)",
        [f"{pointer}: {keyword}" for pointer, keyword in annotations.items()],
    )


def _print_list(title: str, lines: list[str]) -> None:
    if not lines:
        return
    print(f"\n{title}:")
    print("\n".join(f"  {line}" for line in lines[:_MAX_LISTED]))
    if len(lines) > _MAX_LISTED:
        print(f"  ... and {len(lines) - _MAX_LISTED} more")


def _sample_text(sample: Sample) -> str:
    text = sample.text.decode(errors="replace")
    shown = text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + " ..."
    if not sample.is_whole:
        return f"sample: stops after {len(sample.widths)} tokens ({sample.reason})\n{shown}"
    total = len(sample.widths)
    forced = sum(width == 1 for width in sample.widths)
    few = sum(width is not None and 1 < width <= _FEW for width in sample.widths)
    rows = [["sample", str(total), "tokens"]]
    for label, part in (
        ("forced", forced),
        (f"choices of 2 to {_FEW}", few),
        ("free", total - forced - few),
    ):
        rows.append([f"  {label}", str(part), share(part / total if total else None)])
    return f"{columns(rows)}\n{shown}"
