"""Small stand-ins that many tests share: a tiny random model with a byte-level tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content']"
    " + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
EOS_TOKEN_ID = 2
_CORPUS = (
    'the weather in Paris: {"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}',
    "call the function with the arguments, then tell the user what the function returned",
    '<tool_call>\n{"name": "search", "arguments": {"query": "cheap flights", "limit": 10}}\n',
)


def tiny_tokenizer_folder(folder: Path, vocab_size: int = 320) -> Path:
    """Write a byte-level BPE tokenizer: 3 special tokens, 256 bytes, merges up to vocab_size."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        show_progress=False,
        special_tokens=[AddedToken(t, special=True) for t in SPECIAL_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": SPECIAL_TOKENS[EOS_TOKEN_ID],
        "clean_up_tokenization_spaces": False,
        "model_max_length": 512,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def tiny_model_folder(folder: Path, *, seed: int = 0, **overrides: Any) -> Path:
    """Write a 2-layer random Llama with a byte-level tokenizer as a transformers folder.

    Args:
        folder: where to; made if absent.
        seed: of the weights; they are scaled up so that logits differ by more than rounding.
        overrides: LlamaConfig fields, e.g. rope_parameters, tie_word_embeddings; also
            max_shard_size for sharded files.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    max_shard_size = overrides.pop("max_shard_size", "5GB")
    sizes: dict[str, Any] = {
        "vocab_size": 320,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "bos_token_id": 1,
        "eos_token_id": EOS_TOKEN_ID,
        "pad_token_id": None,
        "tie_word_embeddings": True,
        "initializer_range": 0.2,
    }
    config = LlamaConfig(**{**sizes, **overrides})
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config).to(torch.float32)
    for name, tensor in model.named_parameters():
        if name.endswith("norm.weight"):
            tensor.data.uniform_(0.5, 1.5, generator=torch.Generator().manual_seed(seed))
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    return tiny_tokenizer_folder(folder, min(320, config.vocab_size))
