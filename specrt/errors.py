"""The errors that specrt raises on purpose.

SpecrtError
    ConfigError             a flag, a model folder or a file is wrong; raised at start
    RequestError (400)      the request is wrong; `param` names the field
        SchemaError         a JSON Schema cannot be used; `pointer` and `keyword` say where and why
        ContextLengthError  prompt or prompt + max_tokens does not fit; the message has the numbers
        ToolChoiceError     tool_choice does not fit the tools
    OverloadedError (429)   the queue is full
    EngineError (500)       the engine failed; the request is not at fault
        EngineUnavailableError (503)  there is no engine to ask right now
    GrammarError (500)      the grammar of one request failed; only that request ends

A message says what was expected, what came and what to do.
"""

from __future__ import annotations


class SpecrtError(Exception):
    """Base of all errors raised on purpose."""


class ConfigError(SpecrtError):
    """A flag, a model folder or a file cannot be used."""


class RequestError(SpecrtError):
    """The request is at fault; answered with HTTP 400."""

    status = 400

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


class SchemaError(RequestError):
    """A JSON Schema cannot be enforced.

    Attributes:
        pointer: JSON pointer of the offending value inside the schema ("" is the whole schema).
        keyword: the JSON Schema keyword that cannot be enforced; "" when the schema is malformed.
    """

    def __init__(
        self, message: str, *, param: str | None = None, pointer: str = "", keyword: str = ""
    ) -> None:
        super().__init__(message, param=param, code="invalid_schema")
        self.pointer = pointer
        self.keyword = keyword


class ContextLengthError(RequestError):
    """The request does not fit the context or the cache."""

    def __init__(self, message: str, *, param: str | None = "messages") -> None:
        super().__init__(message, param=param, code="context_length_exceeded")


class ToolChoiceError(RequestError):
    """tool_choice and tools disagree."""

    def __init__(self, message: str) -> None:
        super().__init__(message, param="tool_choice", code="invalid_tool_choice")


class OverloadedError(RequestError):
    """The queue is full; answered with HTTP 429."""

    status = 429


class EngineError(SpecrtError):
    """The engine failed; answered with HTTP 500."""

    status = 500


class EngineUnavailableError(EngineError):
    """There is no engine to ask right now; answered with HTTP 503 and Retry-After."""

    status = 503
    retry_after = 10  # seconds; a start takes about as long


class GrammarError(SpecrtError):
    """The grammar of one request cannot go on: a limit was reached or no token is allowed.

    Only that request ends, with an error. Going on without the constraint is never the answer.
    """

    status = 500
