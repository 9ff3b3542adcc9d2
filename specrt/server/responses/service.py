"""/v1/responses: create, stream, keep, continue, cancel."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from openai.types.responses import (
    Response,
    ResponseFunctionToolCall,
    ResponseFunctionToolCallItem,
    ResponseItemList,
)

from specrt.errors import ContextLengthError, RequestError
from specrt.server.access import RequestRecord
from specrt.server.chat import ChatService, Turn
from specrt.server.errors import NotFoundError, error_status, log_unforeseen
from specrt.server.responses.conversation import Conversation
from specrt.server.responses.items import Item, read_items
from specrt.server.responses.output import OutputItem, begin_response, to_json
from specrt.server.responses.request import ResponsesRequest
from specrt.server.responses.run import Run
from specrt.server.responses.store import ResponseStore, StoredResponse
from specrt.server.responses.stream import EventBuilder
from specrt.server.responses.tools import ToolSet, read_tools
from specrt.server.responses.translation import chat_request, rename_fields


class ResponseService:
    """Answers requests for responses; generates as the chat service does."""

    def __init__(self, chat: ChatService, model_name: str, store: ResponseStore) -> None:
        self._chat = chat
        self._model_name = model_name
        self._store = store
        self._running: dict[str, Run] = {}
        # Clients send these always; chat refuses them where the template does not read them.
        self._hints = frozenset({"reasoning_effort", "verbosity"})

    async def complete(self, body: ResponsesRequest, record: RequestRecord) -> Response:
        """The whole response.

        Raises:
            RequestError: the request is at fault.
            EngineError: the engine failed.
        """
        return await (await self._begin(body, record)).result()

    async def stream(
        self, body: ResponsesRequest, record: RequestRecord
    ) -> AsyncGenerator[bytes, None]:
        """The response as server-sent events; a failure after the first is an event too.

        Raises:
            RequestError: the request is at fault.
            EngineError: the engine failed before the first output.
        """
        run = await self._begin(body, record)
        async with aclosing(run.events()) as events:
            async for event in events:
                yield f"event: {event.type}\ndata: {to_json(event)}\n\n".encode()
        if run.error is not None:
            record.status, record.error = error_status(run.error), str(run.error)
            log_unforeseen(run.error)

    def get(self, response_id: str) -> Response:
        """A response that is kept, or is running and will be.

        Raises:
            NotFoundError: there is none.
        """
        run = self._running.get(response_id)
        if run is not None and run.is_kept:
            return run.response
        return self._find(response_id).response

    async def delete(self, response_id: str) -> None:
        """Forget a response; a running one is cancelled first.

        Raises:
            NotFoundError: there is none.
        """
        run = self._running.get(response_id)
        if run is not None and run.is_kept:
            await run.cancel()
        if not self._store.remove(response_id):
            raise _not_found(response_id)

    async def cancel(self, response_id: str) -> Response:
        """End a running response; one that was cancelled before is returned as it is.

        Raises:
            NotFoundError: there is none.
            RequestError: it has ended.
        """
        run = self._running.get(response_id)
        if run is not None:
            return await run.cancel()
        response = self._find(response_id).response
        if response.status != "cancelled":
            raise RequestError(
                f"response {response_id!r} is {response.status}: only a running one can be"
                " cancelled",
                code="invalid_state",
            )
        return response

    def input_items(
        self, response_id: str, *, after: str | None, limit: int, newest_first: bool
    ) -> ResponseItemList:
        """A page of the items that a response was generated from, earlier responses included.

        Raises:
            NotFoundError: there is no such response.
            RequestError: `after` is not among its items.
        """
        stored = self._find(response_id)
        items: list[Item] = list(stored.input_items)
        if stored.response.previous_response_id is not None:
            for earlier in self._earlier(stored.response.previous_response_id):
                items = [*earlier.input_items, *earlier.output_items, *items]
        if newest_first:
            items.reverse()
        start = 0
        if after is not None:
            ids = [item.id for item in items]
            if after not in ids:
                raise RequestError(
                    f"`after`: expected the id of an item of this response, got {after!r}",
                    param="after",
                    code="invalid_value",
                )
            start = ids.index(after) + 1
        page = items[start : start + limit]
        return ResponseItemList.construct(
            object="list",
            data=page,
            first_id=page[0].id if page else "",
            last_id=page[-1].id if page else "",
            has_more=start + limit < len(items),
        )

    async def _begin(self, body: ResponsesRequest, record: RequestRecord) -> Run:
        tools = read_tools(body.tools, body.tool_choice)
        items = read_items(body.input, self._store.find_item)
        conversation = Conversation(body.instructions)
        if body.previous_response_id is not None:
            for stored in reversed(self._earlier(body.previous_response_id)):
                conversation.add(stored.input_items, "previous_response_id")
                conversation.add(stored.output_items, "previous_response_id")
        conversation.add(items)
        turn = await self._start(body, record, conversation, tools)
        response = begin_response(
            record.generation_id, record.created, self._model_name, body, tools
        )
        builder = EventBuilder(tools.origins, with_logprobs=body.num_logprobs is not None)

        def keep(ended: Response) -> None:
            output = tuple(_as_item(item) for item in builder.output)
            self._store.add(StoredResponse(ended, tuple(items), output))

        on_end = keep if body.store else None
        run = Run(self._chat, turn, response, builder, on_end=on_end)
        self._running[response.id] = run
        run.task.add_done_callback(lambda _: self._running.pop(response.id, None))
        return run

    async def _start(
        self,
        body: ResponsesRequest,
        record: RequestRecord,
        conversation: Conversation,
        tools: ToolSet,
    ) -> Turn:
        """Start the turn; with truncation, without the oldest items that do not fit."""

        async def start(num_dropped: int) -> tuple[Turn, str]:
            messages, paths = conversation.messages(num_dropped)
            try:
                chat_body = chat_request(body, messages, tools, self._hints)
                turn = await self._chat.start(chat_body, record, id_prefix="resp_")
            except RequestError as error:
                if error.param in self._hints:
                    self._hints -= {error.param}
                    return await start(num_dropped)
                rename_fields(error, {**paths, **tools.paths})
                raise
            return turn, record.generation_id

        try:
            return (await start(0))[0]
        except ContextLengthError:
            if body.truncation != "auto" or not conversation.num_droppable:
                raise
        too_few, enough = 0, conversation.num_droppable
        turn, generation_id = await start(enough)
        while enough - too_few > 1:
            middle = (too_few + enough) // 2
            try:
                turn, generation_id = await start(middle)
                enough = middle
            except ContextLengthError:
                too_few = middle
        record.generation_id = generation_id
        return turn

    def _find(self, response_id: str) -> StoredResponse:
        stored = self._store.get(response_id)
        if stored is None:
            raise _not_found(response_id)
        return stored

    def _earlier(self, response_id: str) -> list[StoredResponse]:
        """A response and all that it continues, newest first."""
        found: list[StoredResponse] = []
        for stored in self._store.chain(response_id):
            if stored is None:
                running = self._running.get(response_id)
                state = "is still running" if running else "is not stored (any more)"
                raise RequestError(
                    f"`previous_response_id`: expected the id of a stored response, but"
                    f" {response_id!r} {state}; send all items in `input` instead",
                    param="previous_response_id",
                    code="previous_response_not_found",
                )
            found.append(stored)
        return found


def _as_item(item: OutputItem) -> Item:
    """An output item as a later request reads it."""
    if isinstance(item, ResponseFunctionToolCall):
        return ResponseFunctionToolCallItem.model_validate(item.model_dump(exclude_unset=True))
    return item


def _not_found(response_id: str) -> NotFoundError:
    return NotFoundError(
        f"there is no response {response_id!r}: it was not stored (`store`: false), was deleted, or"
        " was dropped to make room",
        code="response_not_found",
    )
