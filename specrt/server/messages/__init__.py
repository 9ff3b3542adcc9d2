"""POST /v1/messages and /v1/messages/count_tokens, as Anthropic's clients speak them.

A request becomes a chat request (`request.py`, `history.py`) and takes the same way from there as
/v1/chat/completions; its deltas become content blocks (`blocks.py`). Errors have Anthropic's shape
(`errors.py`). What is honoured otherwise than on Anthropic's own servers:

* `cache_control` anywhere, `metadata`, `service_tier`, `output_config.effort`, `speed: standard`
  and edits of thinking in `context_management` change nothing: every prefix is cached, and there is
  one kind of service. The `anthropic-version` and `anthropic-beta` headers are not needed.
* `thinking` is accepted in every form and produces no thinking block: the model answers at once.
  Thinking blocks in the history are left out of the prompt.
* The line `x-anthropic-billing-header: ...` that Claude Code puts in front of its system prompt
  differs in every request, so it is left out of the prompt; with it no prefix would ever be found
  in the cache.
* A `max_tokens` that the context does not hold is cut to what fits; an output that ends there has
  the stop reason `model_context_window_exceeded`.
* A `tool_result` with `is_error` reads "Error: " in front of its content.
* Everything else that is not served is refused by name: images and documents, tools that run on
  Anthropic's servers, prefilled answers, containers, MCP servers.
"""
