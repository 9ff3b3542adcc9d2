"""What the chat tests share: templates of known kinds, and a tokenizer read from its file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

# ChatML with a default system message and no tools; fails on content null, as SmolLM2's does.
PLAIN_TEMPLATE = (
    "{% for message in messages %}"
    "{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful model<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Has tools and prints calls in the hermes style, from parsed arguments; trims contents.
TOOL_TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    "<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content | trim }}"
    "{% for call in message.tool_calls %}"
    "{% if message.content or not loop.first %}{{ '\n' }}{% endif %}"
    '{{ \'<tool_call>\n{"name": "\' + call.function.name + \'", "arguments": \' }}'
    "{{ call.function.arguments | tojson }}{{ '}\n</tool_call>' }}{% endfor %}"
    "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class FileTokenizer:
    """A tokenizer.json with the methods that prompts need."""

    def __init__(self, path: Path, eos_token: str = "<|im_end|>") -> None:
        self._tokenizer = Tokenizer.from_file(str(path))
        self._plain = Tokenizer.from_file(str(path))
        self._bytes = ByteLevel(add_prefix_space=False, use_regex=False)
        self._plain.encode_special_tokens = True
        self.eos_token_ids = frozenset({self._tokenizer.token_to_id(eos_token)})
        added = self._tokenizer.get_added_tokens_decoder()
        self.special_token_ids = frozenset(i for i, token in added.items() if token.special)

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def encode_plain(self, text: str) -> list[int]:
        return list(self._plain.encode(text, add_special_tokens=False).ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=False))

    def bytewise(self, text: str) -> list[int]:
        """The longest tokenisation: one token a byte."""
        spelled = self._bytes.pre_tokenize_str(text)[0][0] if text else ""
        return [self._tokenizer.token_to_id(char) for char in spelled]
