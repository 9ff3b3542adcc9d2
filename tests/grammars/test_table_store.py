"""What comes back from disk is what was saved, or nothing."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import pickle
import resource
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as np_st

from specrt.grammars.table_store import TableStore, default_folder


def key_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


KEY = key_of("key")
TABLE = {
    "transitions": np.arange(3 * 256, dtype=np.int32).reshape(3, 256),
    "finals": np.array([True, False, True]),
    "start": np.array(7, dtype=np.uint64),
    "none": np.zeros((0, 4), dtype=np.float32),
}


def assert_equal(found: dict[str, npt.NDArray[Any]] | None, expected: dict[str, Any]) -> None:
    assert found is not None
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes()
        assert not found[name].flags.writeable


def files_of(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


DTYPES = st.one_of(
    np_st.boolean_dtypes(),
    np_st.integer_dtypes(endianness="="),
    np_st.unsigned_integer_dtypes(endianness="="),
    np_st.floating_dtypes(endianness="=", sizes=(32, 64)),
)
ARRAYS = np_st.arrays(DTYPES, np_st.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5))


@settings(max_examples=60, deadline=None)
@given(arrays=st.dictionaries(st.text(max_size=8), ARRAYS, max_size=4))
def test_what_was_saved_comes_back(arrays: dict[str, npt.NDArray[Any]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        store = TableStore(Path(name) / "tables")
        assert store.load(KEY) is None
        store.save(KEY, arrays)
        assert_equal(store.load(KEY), arrays)
        assert_equal(TableStore(Path(name) / "tables").load(KEY), arrays)


def test_other_orders_of_bytes_and_axes_are_written_plainly(tmp_path: Path) -> None:
    store = TableStore(tmp_path)
    array = np.arange(12, dtype=">i4").reshape(3, 4)
    store.save(KEY, {"big": array, "turned": array.T, "strided": array[:, ::2]})
    found = store.load(KEY)
    assert found is not None
    assert found["big"].tolist() == array.tolist()
    assert found["turned"].tolist() == array.T.tolist()
    assert found["strided"].tolist() == array[:, ::2].tolist()


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_damaged_bytes_are_never_read(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        store = TableStore(Path(name))
        store.save(KEY, TABLE)
        (path,) = files_of(Path(name))
        content = bytearray(path.read_bytes())
        kind = data.draw(st.sampled_from(["flip", "cut", "insert", "append"]))
        place = data.draw(
            st.integers(0, len(content) - 1) | st.integers(0, 200) | st.just(len(content) - 1)
        )
        if kind == "flip":
            content[place] ^= data.draw(st.integers(1, 255))
        elif kind == "cut":
            del content[place:]
        elif kind == "insert":
            content[place:place] = data.draw(st.binary(min_size=1, max_size=70))
        else:
            content += data.draw(st.binary(min_size=1, max_size=70))
        path.write_bytes(content)
        assert store.load(KEY) is None
        assert files_of(Path(name)) == []
        store.save(KEY, TABLE)
        assert_equal(store.load(KEY), TABLE)


def test_foreign_files_are_removed(tmp_path: Path) -> None:
    store = TableStore(tmp_path)
    store.save(KEY, TABLE)
    (path,) = files_of(tmp_path)
    other = path.with_name(path.name.replace(KEY, key_of("other")))
    other.write_bytes(path.read_bytes())  # whole, but of another key
    assert store.load(key_of("other")) is None
    assert files_of(tmp_path) == [path]

    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "exploded"),)

    for content in [pickle.dumps(Bomb()), b"", b"\x93NUMPY", os.urandom(5000)]:
        path.write_bytes(content)
        assert store.load(KEY) is None
        assert files_of(tmp_path) == []


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=4)
    | st.sampled_from(["|O", "<i4"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
ENTRIES = st.fixed_dictionaries(
    {
        "name": JSON,
        "dtype": JSON | st.just("<i4"),
        "shape": st.lists(st.integers(), max_size=3) | JSON,
    }
)
HEADERS = st.fixed_dictionaries({"key": st.just(KEY), "arrays": st.lists(ENTRIES) | JSON}) | JSON


@settings(max_examples=150, deadline=None)
@given(header=HEADERS, length=st.none() | st.integers(0, 2**64 - 1), payload=st.binary(max_size=64))
def test_a_valid_checksum_makes_no_header_dangerous(
    header: Any, length: int | None, payload: bytes
) -> None:
    """The checksum proves a file whole, not honest."""
    with tempfile.TemporaryDirectory() as name:
        store = TableStore(Path(name))
        store.save(KEY, TABLE)
        (path,) = files_of(Path(name))
        magic = path.read_bytes()[:16]
        text = json.dumps(header).encode()
        rest = struct.pack("<Q", len(text) if length is None else length) + text + payload
        path.write_bytes(magic + hashlib.sha256(rest).digest() + rest)
        found = store.load(KEY)
        if found is None:
            assert files_of(Path(name)) == []
        else:  # by chance it describes its payload
            assert sum(array.nbytes for array in found.values()) <= len(payload)


def test_deep_headers_are_refused(tmp_path: Path) -> None:
    store = TableStore(tmp_path)
    store.save(KEY, TABLE)
    (path,) = files_of(tmp_path)
    rest = struct.pack("<Q", 200_000) + b"[" * 200_000
    path.write_bytes(path.read_bytes()[:16] + hashlib.sha256(rest).digest() + rest)
    assert store.load(KEY) is None


def test_the_check_decides(tmp_path: Path) -> None:
    store = TableStore(tmp_path)
    store.save(KEY, TABLE)
    assert_equal(store.load(KEY, lambda arrays: bool(arrays["transitions"].max() < 1000)), TABLE)
    assert store.load(KEY, lambda arrays: bool(arrays["transitions"].max() < 100)) is None
    assert files_of(tmp_path) == []
    store.save(KEY, TABLE)
    assert store.load(KEY, lambda arrays: bool(arrays["of an older version"].max() < 3)) is None
    assert files_of(tmp_path) == []


def test_only_numbers_are_written(tmp_path: Path) -> None:
    store = TableStore(tmp_path)
    for array in [np.array([{}]), np.array(["text"]), np.array([1j]), np.zeros(2, "i4,f4")]:
        with pytest.raises(TypeError, match="expected numbers"):
            store.save(KEY, {"array": array})
    assert files_of(tmp_path) == []


@pytest.mark.parametrize("key", ["", "../" + KEY[3:], KEY.upper(), KEY + "\n", KEY[1:]])
def test_keys_stay_inside_the_folder(tmp_path: Path, key: str) -> None:
    store = TableStore(tmp_path)
    with pytest.raises(ValueError, match="SHA-256"):
        store.load(key)
    with pytest.raises(ValueError, match="SHA-256"):
        store.save(key, TABLE)


def test_what_was_used_longest_ago_goes_first(tmp_path: Path) -> None:
    array = {"array": np.zeros(1000, dtype=np.uint8)}
    store = TableStore(tmp_path, max_bytes=4 * 1300)
    keys = [key_of(str(number)) for number in range(4)]
    for age, key in enumerate(keys):
        store.save(key, array)
        stamp = time.time() - 1000 + age
        os.utime(tmp_path / f"{key}.tables", (stamp, stamp))
    assert store.load(keys[0]) is not None  # used: now keys[1] is the oldest
    store.save(key_of("new"), array)
    assert store.load(keys[1]) is None
    for key in [keys[0], keys[2], keys[3], key_of("new")]:
        assert store.load(key) is not None
    store.save(key_of("new"), array)  # in place of itself: nothing has to go
    assert len(files_of(tmp_path)) == 4
    store.save(KEY, {"array": np.zeros(6000, dtype=np.uint8)})  # more than fits at all
    assert len(files_of(tmp_path)) == 4


@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(st.integers(0, 6000), max_size=12))
def test_the_folder_keeps_to_its_bound(sizes: list[int]) -> None:
    with tempfile.TemporaryDirectory() as name:
        store = TableStore(Path(name), max_bytes=5000)
        for number, size in enumerate(sizes):
            store.save(key_of(str(number)), {"array": np.zeros(size, dtype=np.uint8)})
            assert sum(path.stat().st_size for path in files_of(Path(name))) <= 5000
            assert (store.load(key_of(str(number))) is not None) == (size <= 4736)


def test_abandoned_temporary_files_go(tmp_path: Path) -> None:
    old, young = tmp_path / ".old.tmp", tmp_path / ".young.tmp"
    for path, age in [(old, 4000), (young, 10)]:
        path.write_bytes(b"half")
        os.utime(path, (time.time() - age, time.time() - age))
    TableStore(tmp_path).save(KEY, TABLE)
    assert not old.exists()
    assert young.exists()


def test_a_folder_that_cannot_be_made_costs_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_bytes(b"")
    store = TableStore(tmp_path / "file" / "tables")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            store.save(KEY, TABLE)
            assert store.load(KEY) is None
    assert len(caplog.records) == 1
    assert "going on without" in caplog.text


def test_a_full_disk_costs_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = TableStore(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))  # the write of more fails half-way
    try:
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                store.save(KEY, TABLE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(caplog.records) == 1
    assert files_of(tmp_path) == []
    store.save(KEY, TABLE)
    assert_equal(store.load(KEY), TABLE)


WRITER = """
import sys
from pathlib import Path
import numpy as np
from specrt.grammars.table_store import TableStore
import hashlib

store = TableStore(Path(sys.argv[1]), max_bytes=30_000)
for turn in range(150):
    for number in range(4):
        key = hashlib.sha256(str(number).encode()).hexdigest()
        store.save(key, {"array": np.full(2000 + number, number, dtype=np.int32)})
        found = store.load(key)
        if found is not None:
            assert len(found["array"]) == 2000 + number, len(found["array"])
            assert (found["array"] == number).all()
"""


def test_two_processes_share_a_folder(tmp_path: Path) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, tmp_path], stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    store = TableStore(tmp_path, max_bytes=30_000)
    num_found = 0
    while any(writer.poll() is None for writer in writers):
        for number in range(4):
            found = store.load(key_of(str(number)))
            if found is not None:
                num_found += 1
                assert found["array"].tolist() == [number] * (2000 + number)
    for writer in writers:
        _, errors = writer.communicate()
        assert writer.returncode == 0, errors
        assert b"not usable" not in errors
    assert num_found
    names = [path.name for path in files_of(tmp_path)]
    assert names and all(name.endswith(".tables") for name in names)


def test_the_default_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECRT_CACHE", "/somewhere")
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert default_folder() == Path("/somewhere/grammars")
    monkeypatch.delenv("SPECRT_CACHE")
    assert default_folder() == Path("/elsewhere/specrt/grammars")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_folder() == Path.home() / ".cache" / "specrt" / "grammars"
