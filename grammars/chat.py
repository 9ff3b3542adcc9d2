"""From messages and tools to the text that the model reads.

The model's own chat template is used wherever it can be; for tools, tool calls and tool results
only if it prints calls exactly as the tool-call format does. Otherwise specrt's own template
serves. Rendering depends on nothing but roles, texts, calls and tool declarations.
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Mapping, Sequence

import jinja2
import jinja2.meta
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from specrt.errors import ConfigError, RequestError
from specrt.grammars.formats import TEMPLATE_TOKENS, template_source, unsupported_format
from specrt.grammars.json_style import restyle
from specrt.grammars.messages import Call, Message
from specrt.grammars.special_text import Rendering, SpecialText
from specrt.grammars.tool_format import ToolFormat
from specrt.grammars.tools import Tool

_log = logging.getLogger(__name__)

# What a template may raise on input it does not like: its own refusals and Python's.
_TEMPLATE_ERRORS = (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError)

# Variables that a request may not set: rendering sets them.
_OWN_VARIABLES = ("messages", "tools", "add_generation_prompt")
# Values that ask for nothing where the template does not read the variable.
_NEUTRAL: dict[str, object] = {
    "enable_thinking": False,
    "thinking": False,
    "reasoning_effort": "none",
    "verbosity": "medium",
}


class _JsonObject(dict[str, object]):
    """Parsed call arguments that `tojson` prints as they were written, but for the separators."""

    def __init__(self, text: str) -> None:
        super().__init__(json.loads(text, parse_int=_parse_int))
        self._text = text


def _as_written(value: object, texts: list[str], item: str, key: str) -> object:
    """`value` with marks for the arguments in it, whose texts are appended to `texts`."""
    if isinstance(value, _JsonObject):
        texts.append(restyle(value._text, item_separator=item, key_separator=key))
        return _mark(len(texts) - 1)
    if isinstance(value, dict):
        return {k: _as_written(v, texts, item, key) for k, v in value.items()}
    if isinstance(value, list):
        return [_as_written(v, texts, item, key) for v in value]
    return value


def _mark(index: int) -> str:
    return f"\x7fcall {index}\x7f"  # a client's text could hold it, but not as all of a string


def _parse_int(digits: str) -> float:
    # int() refuses thousands of digits; what `tojson` prints is the text anyway.
    return int(digits) if len(digits) < 400 else float(digits)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


class _Generation(Extension):
    """`{% generation %}` marks what the model wrote, for training; it prints its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@functools.lru_cache(maxsize=8)
def _compile(source: str) -> jinja2.Template:
    return _environment().from_string(source)


def _environment() -> jinja2.Environment:
    def to_json(
        value: object,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        texts: list[str] = []
        if not (ensure_ascii or indent):
            item, key = separators or (", ", ": ")
            value = _as_written(value, texts, item, key)
        printed = json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )
        for index, text in enumerate(texts):
            printed = printed.replace(f'"{_mark(index)}"', text)
        return printed

    # No strftime_now: a date in the prompt would end every cached prefix at midnight. Templates
    # test for it and fall back to a fixed date.
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = _raise_exception
    return environment


@functools.lru_cache(maxsize=8)
def _variables_of(source: str) -> frozenset[str]:
    """The names that a template reads and does not set itself."""
    environment = _environment()
    names = jinja2.meta.find_undeclared_variables(environment.parse(source))
    return frozenset(names - environment.globals.keys())


class ChatRenderer:
    """Renders conversations for one model and one tool-call format.

    Args:
        chat_template: the model's own template (Jinja), if it has one.
        tool_format: how calls are written.
        special_tokens: texts of all special tokens of the tokenizer.
        bos_token: as templates read it.
        eos_token: as templates read it.
        is_chosen: the user chose the format: specrt's own template may replace one that writes
            calls in a format that is not supported.

    Attributes:
        tools_fit: how well the model's own template prints calls in the format: 0 = it does not,
            2 = text and several calls too, byte for byte.

    Raises:
        ConfigError: the model's own template is not valid Jinja.
    """

    def __init__(
        self,
        chat_template: str | None,
        tool_format: ToolFormat,
        *,
        special_tokens: Sequence[str],
        bos_token: str = "",
        eos_token: str = "",
        is_chosen: bool = False,
    ) -> None:
        self.tool_format = tool_format
        self._special_tokens = tuple(special_tokens)
        self._sources = [chat_template or "", template_source()]
        self._unsupported = None if is_chosen else unsupported_format(self._sources[0])
        self._variables: dict[str, object] = {
            "bos_token": bos_token,
            "eos_token": eos_token,
            "format": tool_format,
            "default_system": "",
        }
        self._fallback = _compile(self._sources[1])
        self._has_fallback = set(TEMPLATE_TOKENS) <= set(special_tokens)
        self._own: jinja2.Template | None = None
        self._takes_text = False  # are arguments passed to the template as JSON text?
        self.tools_fit = 0
        if chat_template:
            try:
                self._probe(_compile(chat_template))
            except jinja2.TemplateSyntaxError as error:
                raise ConfigError(
                    f"the model's chat template: expected Jinja, got an error in line"
                    f" {error.lineno}: {error.message}"
                ) from None

    def _probe(self, own: jinja2.Template) -> None:
        """Find out by use what the model's template can do."""
        try:
            user = {"role": "user", "content": "probe question"}
            plain = own.render(self._variables, messages=[user], add_generation_prompt=True)
            if user["content"] not in plain:
                raise ValueError("it does not print the user's message")
        except _TEMPLATE_ERRORS as error:
            _log.warning("the model's chat template cannot be used: %s", error)
            return
        self._own = own
        self._variables["default_system"] = self._probe_system(own)
        self._probe_tools(own)

    def _probe_system(self, own: jinja2.Template) -> str:
        """The system text that the template writes when the conversation has none."""
        marker = "probe system"
        user = {"role": "user", "content": "probe question"}
        system = {"role": "system", "content": marker}
        try:
            given = own.render(self._variables, messages=[system, user])
            absent = own.render(self._variables, messages=[user])
        except _TEMPLATE_ERRORS:
            return ""
        before, found, after = given.partition(marker)
        fits = found and absent.startswith(before) and absent.endswith(after)
        return absent[len(before) : len(absent) - len(after)] if fits else ""

    def _probe_tools(self, own: jinja2.Template) -> None:
        """Does the template print declarations, results, and calls as the format writes them?

        Arguments are passed parsed, as transformers passes them, or as text to templates that
        only take that.
        """
        for self._takes_text in (False, True):
            call = self._probe_call(0)
            expected = self.tool_format.printed_text(call.name, call.styled, call.id)
            expected = self.tool_format.calls_begin + expected + self.tool_format.calls_end
            before, text = self._probe_turn(own, "", [call])
            is_printed = all(part in text for part in ("probe_tool", "probe result", expected))
            if self.tool_format.text_separator is None:  # nothing else marks its calls
                is_printed = is_printed and text.startswith(before + expected)
            if is_printed:
                calls = [self._probe_call(number) for number in (0, 1)]
                turn = self.tool_format.turn_text(
                    "probe", [(c.name, c.styled, c.id) for c in calls]
                )
                self.tools_fit = 2 if turn in self._probe_turn(own, "probe", calls)[1] else 1
                return
        self._takes_text = False

    def _probe_call(self, number: int) -> Call:
        arguments = restyle(
            '{"b": 1.50, "a": [1, 2]}',
            item_separator=self.tool_format.item_separator,
            key_separator=self.tool_format.key_separator,
        )
        call_id = self.tool_format.fit_id("probe_name", "", number)
        return Call("probe_name", arguments, arguments, call_id)

    def _probe_turn(
        self, own: jinja2.Template, content: str, calls: Sequence[Call]
    ) -> tuple[str, str]:
        """A prompt, and a conversation that goes on with calls; "" where the template refuses."""
        function = {"name": "probe_tool", "description": "d", "parameters": {"type": "object"}}
        messages = [
            Message(role="user", content="probe question"),
            Message(role="assistant", content=content, calls=tuple(calls)),
            *(Message(role="tool", content="probe result", call_id=call.id) for call in calls),
        ]
        special = SpecialText(())
        prepared = [self._template_message(message, special) for message in messages]
        values = {**self._variables, "tools": [{"type": "function", "function": function}]}
        try:
            before = own.render(values, messages=prepared[:1], add_generation_prompt=True)
            return before, own.render(values, messages=prepared)
        except _TEMPLATE_ERRORS:
            return "", ""

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        *,
        variables: Mapping[str, object] | None = None,
        add_generation_prompt: bool = True,
    ) -> Rendering:
        """The text of a conversation.

        Args:
            messages: at least one message.
            tools: the tools to declare.
            variables: further variables of the template, as JSON values.
            add_generation_prompt: end with the beginning of an assistant turn.

        Raises:
            RequestError: neither the model's template nor the format's can render it, the
                template refuses the conversation, or it does not read a variable.
        """
        template = self._template(messages, tools)
        variables = variables or {}
        self._check_variables(variables, is_own=template is self._own)
        outside = [*self._sources, *(part for m in messages for part in _texts(m))]
        outside += [json.dumps(tool.declaration, ensure_ascii=False) for tool in tools]
        outside.append(json.dumps(variables, ensure_ascii=False))
        special = SpecialText(self._special_tokens, outside)
        try:
            text = template.render(
                {**self._variables, **{k: special.broken_json(v) for k, v in variables.items()}},
                messages=[self._template_message(m, special) for m in messages],
                tools=[special.broken_json(tool.declaration) for tool in tools] or None,
                add_generation_prompt=add_generation_prompt,
            )
        except _TEMPLATE_ERRORS as error:
            raise RequestError(
                f"messages: the model's chat template refuses this conversation: {error}",
                param="messages",
            ) from None
        return special.resolve(special.spelled(text))

    def _check_variables(self, variables: Mapping[str, object], *, is_own: bool) -> None:
        """Nothing that was asked for may go unread."""
        if not variables:
            return
        read = _variables_of(self._sources[0 if is_own else 1])
        for name, value in variables.items():
            path = f"chat_template_kwargs.{name}"
            if name in self._variables or name in _OWN_VARIABLES:
                raise RequestError(f"{path}: the server sets this variable; remove it", param=path)
            if name not in read and (name not in _NEUTRAL or _NEUTRAL[name] != value):
                others = sorted(read - self._variables.keys() - set(_OWN_VARIABLES))
                raise RequestError(
                    f"{path}: the chat template does not read this variable (it reads"
                    f" {', '.join(others) or 'none'}); remove it",
                    param=path,
                )

    def _template(self, messages: Sequence[Message], tools: Sequence[Tool]) -> jinja2.Template:
        needs_tools = bool(tools) or any(m.calls or m.role == "tool" for m in messages)
        if self._own and (self.tools_fit or not needs_tools):
            return self._own
        if self._unsupported:
            raise RequestError(
                f"tools: this model writes calls in the {self._unsupported!r} format, which is not"
                " supported yet; start the server with --tool-call-parser hermes to have calls"
                " written in that format instead",
                param="tools",
            )
        if not self._has_fallback:
            param = "tools" if self._own else "messages"
            raise RequestError(
                f"{param}: this model's chat template cannot render"
                f" {'tools and tool calls' if self._own else 'messages'}, and the"
                " server's own template needs the special tokens"
                f" {' '.join(TEMPLATE_TOKENS)}, which the model does not have; use another model",
                param=param,
            )
        return self._fallback

    def _template_message(self, message: Message, special: SpecialText) -> dict[str, object]:
        """A message as templates read it."""
        content = special.broken(message.content)
        calls = [
            (special.broken(c.name), special.broken(c.styled), special.broken(c.id))
            for c in message.calls
        ]
        prepared: dict[str, object] = {
            "role": message.role,
            "content": content,
            "text": self.tool_format.turn_text(content, calls),
        }
        if calls:
            prepared["tool_calls"] = [
                {
                    "id": call_id,
                    "type": "function",
                    "function": {
                        "name": name,
                        "arguments": arguments if self._takes_text else _JsonObject(arguments),
                    },
                }
                for name, arguments, call_id in calls
            ]
        if message.call_id:
            prepared["tool_call_id"] = special.broken(message.call_id)
        if message.name is not None:
            prepared["name"] = special.broken(message.name)
        return prepared


def _texts(message: Message) -> list[str]:
    parts = [message.content, message.name or ""]
    return parts + [part for call in message.calls for part in (call.name, call.styled)]
