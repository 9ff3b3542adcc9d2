"""The command line: `specrt serve | bench | grammar | eval-draft | train-draft | chat`.

Flags are made from the configuration dataclasses, so a default, unit or help text is written once.
What is heavy is imported by the subcommand that runs, so that every `--help` answers at once.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import functools
import logging
import os
import sys
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NoReturn

from specrt import __version__
from specrt.config import EngineConfig, ServerConfig, build
from specrt.errors import ConfigError, SpecrtError

_BENCHES = ("replay", "equality", "compare", "grammar", "host")
# Switches that recipes for other servers carry, for what specrt always does.
_ALWAYS_ON = ("--enable-prefix-caching", "--enable-radix-attention", "--enable-chunked-prefill")


class _Parser(argparse.ArgumentParser):
    """An argument parser that takes no abbreviations and names the flag that was probably meant."""

    def __init__(self, **settings: Any) -> None:
        settings.setdefault("formatter_class", argparse.ArgumentDefaultsHelpFormatter)
        super().__init__(**{**settings, "allow_abbrev": False})

    def reject(self, unknown: Sequence[str]) -> NoReturn:
        hints = []
        # What follows an unknown flag may be its value: name the flags when there are any.
        for word in [w for w in unknown if w.startswith("-")] or unknown:
            flag_name = word.split("=")[0]
            close = difflib.get_close_matches(flag_name, self._option_string_actions, n=1)
            hints.append(f"{flag_name} (did you mean {close[0]}?)" if close else flag_name)
        self.error(f"unknown argument: {', '.join(hints)}; see {self.prog} --help")


class _AlwaysOn(argparse.Action):
    """Takes a switch, changes nothing, and says so."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        print(f"{parser.prog}: {option_string}: not needed, it is always on", file=sys.stderr)


def add_flags(parser: argparse.ArgumentParser, config: type) -> None:
    """Add one flag per field of `config`, a dataclass of `specrt.config.flag` fields.

    Nested dataclasses add theirs. `Literal` becomes choices, `bool` a switch, `X | None` an X that
    may be left out; other types are called with the text. Aliases are taken, and named in the help.
    """
    hints = typing.get_type_hints(config)
    for spec in dataclasses.fields(config):
        kind = hints[spec.name]
        if dataclasses.is_dataclass(kind):
            add_flags(parser, typing.cast(type, kind))
            continue
        name = spec.metadata.get("name", "--" + spec.name.replace("_", "-"))
        aliases = spec.metadata.get("aliases", ())
        text = spec.metadata["help"] + (f"; also {', '.join(aliases)}" if aliases else "")
        settings: dict[str, Any] = {"dest": spec.name, "help": text.replace("%", "%%")}
        if typing.get_origin(kind) in (typing.Union, types.UnionType):
            (kind,) = (t for t in typing.get_args(kind) if t is not type(None))
        # None and False say nothing as a default; the help text tells what happens then.
        is_telling = spec.default is not None and spec.default is not False
        settings["default"] = spec.default if is_telling else argparse.SUPPRESS
        if kind is bool:
            settings["action"] = "store_true"
        elif typing.get_origin(kind) is Literal:
            settings["choices"] = typing.get_args(kind)
            if "spellings" in spec.metadata:
                settings["type"] = functools.partial(_spelled, spec.metadata["spellings"])
        else:
            settings["type"] = kind
            settings["metavar"] = spec.metadata.get("metavar", kind.__name__.upper())
        parser.add_argument(name, **settings)
        if aliases:  # an argument of their own: argparse would repeat the metavar for each
            hidden = {"help": argparse.SUPPRESS, "default": argparse.SUPPRESS}
            parser.add_argument(*aliases, **{**settings, **hidden})


def _spelled(spellings: Mapping[str, str], text: str) -> str:
    """A choice as it is written here; other programs write some in capitals, or otherwise."""
    return spellings.get(text.lower(), text.lower())


def _parser() -> _Parser:
    parser = _Parser(prog="specrt", description="An inference runtime for tool calls.")
    parser.add_argument("--version", action="version", version=f"specrt {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    serve = commands.add_parser("serve", help="serve the OpenAI-compatible API")
    add_flags(serve, ServerConfig)
    add_flags(serve, EngineConfig)
    serve.add_argument(*_ALWAYS_ON, action=_AlwaysOn, nargs=0, help=argparse.SUPPRESS)
    serve.epilog = f"Taken and always on: {', '.join(_ALWAYS_ON)}."
    serve.set_defaults(run=_serve, parser=serve)

    from specrt.bench.options import (
        CompareOptions,
        EqualityOptions,
        GrammarBenchOptions,
        HostOptions,
        ReplayOptions,
    )
    from specrt.chat import ChatOptions

    bench = commands.add_parser("bench", help="measure a server, or check the engine")
    benches = bench.add_subparsers(dest="bench", metavar="BENCH", required=True)
    for name, options, summary in (
        ("replay", ReplayOptions, "replay tool-call conversations against a server (the default)"),
        ("equality", EqualityOptions, "check that speculation never changes a token"),
        ("compare", CompareOptions, "plain against speculative decoding on tool calls"),
        ("grammar", GrammarBenchOptions, "compile times and masks against other engines"),
        ("host", HostOptions, "what a turn costs besides the model's passes, up to 128k tokens"),
    ):
        one = benches.add_parser(name, help=summary, description=summary)
        add_flags(one, options)
        one.set_defaults(run=_bench, parser=one, options=options)

    from specrt.grammar_check.options import CheckOptions, ExplainOptions

    grammar = commands.add_parser("grammar", help="what JSON Schemas become")
    grammars = grammar.add_subparsers(dest="grammar", metavar="COMMAND", required=True)
    summary = "check labelled instances against the grammars of their schemas"
    check = grammars.add_parser("check", help=summary, description=summary)
    add_flags(check, CheckOptions)
    check.set_defaults(run=_grammar_check, parser=check)
    summary = "engine, order, what is not enforced, and how much of a sample is forced"
    explain = grammars.add_parser("explain", help=summary, description=summary)
    explain.add_argument(
        "schema", metavar="SCHEMA", help="file of a JSON Schema; - = standard input"
    )
    add_flags(explain, ExplainOptions)
    explain.set_defaults(run=_grammar_explain, parser=explain)

    from specrt.bench.options import EvalDraftOptions
    from specrt.train.training_options import TrainDraftOptions

    summary = "measure how many tokens a pass draft heads bring on tool calls"
    evaluate = commands.add_parser("eval-draft", help=summary, description=summary)
    add_flags(evaluate, EvalDraftOptions)
    evaluate.set_defaults(run=_eval_draft, parser=evaluate)

    train = commands.add_parser(
        "train-draft",
        help="fit a draft head to agent traces",
        description="Fit an EAGLE-3 draft head to agent traces. A killed run goes on when it is"
        " started again.",
    )
    add_flags(train, TrainDraftOptions)
    train.set_defaults(run=_train_draft, parser=train)

    chat = commands.add_parser("chat", help="chat with a running server in the terminal")
    add_flags(chat, ChatOptions)
    chat.set_defaults(run=_chat, parser=chat)
    return parser


def _start_logging(level: str) -> None:
    levels = ("debug", "info", "warning", "error")
    if level.lower() not in levels:
        raise ConfigError(f"SPECRT_LOG: expected one of {', '.join(levels)}, got {level!r}")
    form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(stream=sys.stderr, level=level.upper(), format=form)
    for client in ("httpx", "httpx2"):  # a line per request at info
        logging.getLogger(client).setLevel(logging.WARNING)


def _serve(values: dict[str, Any]) -> int:
    server, engine = build(ServerConfig, values), build(EngineConfig, values)
    from specrt.server.app import serve

    return serve(server, engine)


def _bench(values: dict[str, Any]) -> int:
    options = build(values["options"], values)
    from specrt.bench.options import (
        EqualityOptions,
        GrammarBenchOptions,
        HostOptions,
        ReplayOptions,
    )

    if isinstance(options, ReplayOptions):
        from specrt.bench import replay

        return replay.run(options)
    if isinstance(options, EqualityOptions):
        from specrt.bench import equality

        return equality.run(options)
    if isinstance(options, GrammarBenchOptions):
        from specrt.bench import grammar

        return grammar.run(options)
    if isinstance(options, HostOptions):
        from specrt.bench import host

        return host.run(options)
    from specrt.bench import compare

    return compare.run(options)


def _grammar_check(values: dict[str, Any]) -> int:
    from specrt.grammar_check import check
    from specrt.grammar_check.options import CheckOptions

    return check.run(build(CheckOptions, values))


def _grammar_explain(values: dict[str, Any]) -> int:
    from specrt.grammar_check import explain
    from specrt.grammar_check.options import ExplainOptions

    return explain.run(values["schema"], build(ExplainOptions, values))


def _train_draft(values: dict[str, Any]) -> int:
    from specrt.train import pipeline
    from specrt.train.training_options import TrainDraftOptions

    return pipeline.run(build(TrainDraftOptions, values))


def _eval_draft(values: dict[str, Any]) -> int:
    from specrt.bench import eval_draft
    from specrt.bench.options import EvalDraftOptions

    return eval_draft.run(build(EvalDraftOptions, values))


def _chat(values: dict[str, Any]) -> int:
    from specrt import chat

    return chat.run(build(chat.ChatOptions, values))


def main(argv: list[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: arguments without the program's name; None takes them from the process.

    Returns:
        Exit status: 0 done, 1 a check failed, 2 bad use or configuration, 130 interrupted.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    if argv[:1] == ["bench"] and (len(argv) == 1 or argv[1] not in (*_BENCHES, "-h", "--help")):
        argv.insert(1, "replay")
    try:
        args, unknown = _parser().parse_known_args(argv)
        if unknown:
            args.parser.reject(unknown)
    except SystemExit as stop:
        return int(stop.code or 0)
    try:
        _start_logging(os.environ.get("SPECRT_LOG", "info"))
        return int(args.run(vars(args)))
    except SpecrtError as error:
        print(f"{args.parser.prog}: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
