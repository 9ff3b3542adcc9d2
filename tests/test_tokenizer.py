from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fakes import CHAT_TEMPLATE, tiny_tokenizer_folder
from hypothesis import given, settings
from hypothesis import strategies as st

from specrt.errors import ConfigError, RequestError
from specrt.model.embedded import find_embedded
from specrt.tokenizer import Tokenizer

TEXTS = [
    "",
    " ",
    "  leading, trailing  ",
    "\n\n\t\r\n",
    "12 345 6789",
    "naïve 日本語 👩\u200d💻 e\u0301 \u2028",
    '{"name": "get_weather", "arguments": {"city": "São Paulo"}}',
    "a<|im_end|>b<|im_start|>user\n",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_tokenizer_folder(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer(folder, 330)


def _change(folder: Path, name: str, **changes: Any) -> None:
    path = folder / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_facts(tokenizer: Tokenizer) -> None:
    assert (len(tokenizer), tokenizer.vocab_size) == (320, 330)
    assert tokenizer.eos_token_ids == (2,)
    assert tokenizer.special_token_ids == {0, 1, 2}
    assert tokenizer.special_tokens == {"eos_token": "<|im_end|>"}
    assert tokenizer.chat_template == CHAT_TEMPLATE
    assert len(tokenizer.fingerprint) == 64


def test_the_models_eos_ids_win(folder: Path) -> None:
    assert Tokenizer(folder, 320, [2, 0, 2]).eos_token_ids == (0, 2)


@pytest.mark.parametrize("text", TEXTS)
def test_round_trip(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()
    plain = tokenizer.encode_plain(text)
    assert tokenizer.decode(plain) == text
    assert not tokenizer.special_token_ids & set(plain)


@settings(max_examples=100, deadline=None)
@given(st.text())
def test_any_text_round_trips(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_special_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("<|im_end|>") == [2]
    plain = tokenizer.encode_plain("<|im_end|>")
    assert len(plain) > 1 and b"".join(map(tokenizer.token_bytes, plain)) == b"<|im_end|>"


def test_every_byte_has_one_token(tokenizer: Tokenizer) -> None:
    single = {tokenizer.token_bytes(i) for i in range(len(tokenizer))}
    assert {bytes([byte]) for byte in range(256)} <= single


def test_ids_beyond_the_tokenizer_have_no_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.token_bytes(325) == b""


def test_lone_surrogate_is_the_requests_fault(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match="position 2 is a lone surrogate"):
        tokenizer.encode("ab\ud800")


def test_fingerprint_tells_tokenizers_apart(tokenizer: Tokenizer, tmp_path: Path) -> None:
    other = Tokenizer(tiny_tokenizer_folder(tmp_path, 300), 330)
    assert other.fingerprint != tokenizer.fingerprint
    assert json.loads(other.tokenizer_json())["model"]["type"] == "BPE"


@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=30), data=st.data())
def test_detokenizer_yields_whole_characters(
    tokenizer: Tokenizer, text: str, data: st.DataObject
) -> None:
    # Bytes one by one, cut anywhere: the hardest case for multi-byte characters.
    byte_ids = {tokenizer.token_bytes(i): i for i in range(3, 320)}
    ids = [byte_ids[bytes([byte])] for byte in text.encode()]
    detokenizer, pieces = tokenizer.detokenizer(), []
    while ids:
        count = data.draw(st.integers(1, len(ids)))
        pieces.append(detokenizer.push(ids[:count]))
        ids = ids[count:]
        assert text.startswith("".join(pieces))
    assert "".join(pieces) == text and detokenizer.flush() == ""


def test_detokenizer_flushes_half_a_character(tokenizer: Tokenizer) -> None:
    byte_ids = {tokenizer.token_bytes(i): i for i in range(3, 320)}
    detokenizer = tokenizer.detokenizer()
    assert detokenizer.push([byte_ids[b"a"], byte_ids[b"\xe6"], byte_ids[b"\x97"]]) == "a"
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.push([byte_ids[b"\xe6"], byte_ids[b"b"]]) == "\ufffdb"


def test_detokenizer_and_special_tokens(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a<|im_end|>b")
    assert tokenizer.detokenizer().push(ids) == "a<|im_end|>b"
    assert tokenizer.detokenizer(skipped_ids=tokenizer.special_token_ids).push(ids) == "ab"


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(
            {"normalizer": {"type": "Strip", "strip_left": True, "strip_right": True}}, id="strip"
        ),
        pytest.param({"pre_tokenizer": {"type": "Whitespace"}}, id="spaces dropped"),
        pytest.param({"normalizer": {"type": "Lowercase"}}, id="lower case"),
        pytest.param({"normalizer": {"type": "NFC"}}, id="composed"),
    ],
)
def test_a_tokenizer_that_changes_text_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    folder = tiny_tokenizer_folder(tmp_path)
    _change(folder, "tokenizer.json", **changes)
    with pytest.raises(ConfigError, match="this tokenizer changes text: .* comes back as"):
        Tokenizer(folder, 320)


def test_smaller_logits_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="ids up to 319, but the model has logits for 300"):
        Tokenizer(folder, 300)


def test_no_end_of_sequence(tmp_path: Path) -> None:
    folder = tiny_tokenizer_folder(tmp_path)
    _change(folder, "tokenizer_config.json", eos_token=None)
    with pytest.raises(ConfigError, match=r"end-of-sequence ids below 320, got \[\]"):
        Tokenizer(folder, 320)
    with pytest.raises(ConfigError, match=r"got \[2, 320\]"):
        Tokenizer(folder, 320, [2, 320])


def test_unknown_decoder_is_refused(tmp_path: Path) -> None:
    folder = tiny_tokenizer_folder(tmp_path)
    _change(folder, "tokenizer.json", decoder={"type": "WordPiece", "prefix": "#", "cleanup": True})
    with pytest.raises(ConfigError, match=r"tokenizer decoder \['WordPiece'\] is not supported"):
        Tokenizer(folder, 320)


def test_missing_and_damaged_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tokenizer.json is missing"):
        Tokenizer(tmp_path, 320)
    folder = tiny_tokenizer_folder(tmp_path)
    path = folder / "tokenizer.json"
    path.write_text(path.read_text()[:2000])
    with pytest.raises(ConfigError, match="the tokenizer cannot be loaded"):
        Tokenizer(folder, 320)


def test_sentencepiece_bytes(tmp_path: Path) -> None:
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, normalizers

    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "▁a"]
    backend = Backend(
        models.BPE({t: i for i, t in enumerate(tokens)}, [("▁", "a")], byte_fallback=True)
    )
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"})
    )
    tokenizer = Tokenizer(tmp_path, 262)
    assert tokenizer.token_bytes(261) == b" a" and tokenizer.token_bytes(3 + 0x0A) == b"\n"
    ids = tokenizer.encode(" a é</s>")
    assert b"".join(map(tokenizer.token_bytes, ids)) == " a é</s>".encode()
    assert tokenizer.detokenizer().push(ids) == " a é</s>"


def test_import_is_light() -> None:
    code = "import sys, specrt.tokenizer; assert not {'torch', 'transformers'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_smollm2() -> None:
    try:
        tokenizer = Tokenizer(find_embedded(), 49152, (2,))
    except ConfigError as error:
        pytest.skip(f"needs the embedded model: {error}")
    # Digits stand alone, and spaces before one are not glued to it.
    assert [tokenizer.token_bytes(i) for i in tokenizer.encode("x  12  3")] == [
        b"x", b"  ", b"1", b"2", b"  ", b"3",
    ]  # fmt: skip
    assert len(tokenizer.encode("<tool_call>")) == 5
    assert tokenizer.special_token_ids == set(range(17))
    assert tokenizer.chat_template is not None and "SmolLM" in tokenizer.chat_template
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text)) == text
