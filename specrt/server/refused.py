"""Fields and values of the OpenAI API, and of its common extensions, that are not served."""

from __future__ import annotations

_LARK = "write the grammar in Lark, as `guided_grammar` or `structured_outputs.grammar`"
_BACKEND = "the grammar engine is chosen when the server is started (--grammar-backend)"
_PINNING = (
    "sessions are not pinned in the cache; a prefix stays cached as long as there is room, and"
    " `cache_salt` separates the caches of tenants"
)

# Field -> why it is not served.
REFUSED = {
    "audio": "audio output is not supported",
    "prediction": "predicted outputs are not supported; drafts come from the grammar and history",
    "web_search_options": "web search is not supported; offer a search function in `tools`",
    "moderation": "moderation is not supported",
    "ebnf": f"EBNF is not read; {_LARK}",
    "structural_tag": f"structural tags are not read; offer `tools`, or {_LARK}",
    "guided_decoding_backend": _BACKEND,
    "guided_whitespace_pattern": "JSON is written with the whitespace of the tool-call format",
    "session_id": _PINNING,
    "session_params": _PINNING,
    "rid": "send the id as the header X-Request-Id",
    "request_id": "send the id as the header X-Request-Id",
    "chat_template": "the model's own chat template is used",
    "documents": "the chat template reads no documents; put them into `messages`",
    "prompt_logprobs": "log-probabilities of prompt tokens are not computed",
    "use_beam_search": "there is no beam search",
    "length_penalty": "there is no beam search",
    "allowed_token_ids": "use `logit_bias`, or `guided_choice`",
    "bad_words": "use `logit_bias`",
    "logits_processors": "no code is run for a request",
    "truncate_prompt_tokens": "prompts are not truncated; shorten the prompt",
}
# Path of a field of which the models take some values only -> why not the others.
REFUSED_VALUES = {
    "modalities": 'only ["text"] is supported',
    "store": "completions are not stored; send false or leave it out",
    "service_tier": "only auto and default exist here",
    "echo": "the prompt of a chat is not echoed; send false or leave it out",
    "suffix": "text insertion is not supported; leave it out",
    "priority": "all requests are equal; leave it out",
    "skip_special_tokens": "text never shows special tokens; use return_token_ids to see them",
    "add_generation_prompt": "the answer is always a new turn; leave it out",
    "continue_final_message": (
        "the answer cannot continue a last message of the assistant; use /v1/completions for that"
    ),
    "stream_options.include_obfuscation": "expected true or false",
}
