"""/tokenize and /detokenize in vLLM's shape: what a prompt or a conversation becomes, and back."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field
from starlette.responses import JSONResponse

from specrt.errors import RequestError
from specrt.grammars.prompt_builder import check_length
from specrt.server.body import parse_body, read_body
from specrt.server.protocol import MAX_TOOLS, StrictModel
from specrt.server.served_model import ServedModel

_MAX_TOKENS = 1 << 20  # of one /detokenize


class TokenizeRequest(StrictModel):
    """Body of POST /tokenize: a prompt, or messages to render as a chat request would."""

    model: str | None = None
    prompt: str | None = None
    messages: list[object] | None = None
    tools: list[object] | None = Field(default=None, max_length=MAX_TOOLS)
    return_token_strs: bool = False
    # Nothing else is possible here: no special token is added to a prompt, the template writes
    # those of a conversation, and a conversation ends where the assistant's turn begins.
    add_special_tokens: bool = False
    add_generation_prompt: Literal[True] = True
    continue_final_message: Literal[False] = False


class TokenizeResponse(BaseModel):
    """Answer of /tokenize.

    Attributes:
        count: number of tokens.
        max_model_len: context length (tokens).
        tokens: ids.
        token_strs: text of each token, invalid UTF-8 replaced; None unless asked for.
    """

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(StrictModel):
    """Body of POST /detokenize."""

    model: str | None = None
    tokens: Annotated[list[int], Field(max_length=_MAX_TOKENS)]


class DetokenizeResponse(BaseModel):
    """Answer of /detokenize: the text, invalid UTF-8 replaced."""

    prompt: str


def tokenization_routes(model: ServedModel) -> APIRouter:
    """The routes, with and without /v1 in front.

    Args:
        model: what is served.
    """
    router = APIRouter()

    def check_model(name: str | None) -> None:
        if name is not None:
            model.check_name(name)

    async def token_ids(body: TokenizeRequest) -> list[int]:
        if (body.prompt is None) == (body.messages is None):
            raise RequestError(
                "`prompt`: expected either a prompt or messages",
                param="prompt",
                code="invalid_value",
            )
        if body.messages is not None:
            return (await model.build_prompt(body.messages, body.tools)).token_ids
        if body.tools is not None:
            raise RequestError(
                "`tools`: expected them beside messages, not beside a prompt",
                param="tools",
                code="invalid_value",
            )
        text = body.prompt or ""
        check_length(text, model.max_prompt_chars, "prompt")
        return await asyncio.to_thread(model.tokenizer.encode, text)

    @router.post("/tokenize")
    @router.post("/v1/tokenize")
    async def tokenize(request: Request) -> Response:
        body = parse_body(TokenizeRequest, await read_body(request))
        check_model(body.model)
        found = await token_ids(body)
        texts = [_text(model, [token_id]) for token_id in found] if body.return_token_strs else None
        answer = TokenizeResponse(
            count=len(found), max_model_len=model.context_length, tokens=found, token_strs=texts
        )
        return JSONResponse(answer.model_dump())

    @router.post("/detokenize")
    @router.post("/v1/detokenize")
    async def detokenize(request: Request) -> Response:
        body = parse_body(DetokenizeRequest, await read_body(request))
        check_model(body.model)
        for index, token_id in enumerate(body.tokens):
            if not 0 <= token_id < model.vocab_size:
                raise RequestError(
                    f"`tokens[{index}]`: expected an id from 0 to {model.vocab_size - 1}, got"
                    f" {token_id}",
                    param=f"tokens[{index}]",
                    code="invalid_value",
                )
        return JSONResponse(DetokenizeResponse(prompt=_text(model, body.tokens)).model_dump())

    return router


def _text(model: ServedModel, token_ids: list[int]) -> str:
    data = b"".join(map(model.tokenizer.token_bytes, token_ids))
    return data.decode("utf-8", "replace")
