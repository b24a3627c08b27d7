"""Training data: windows of real bytes, each read by exactly one rank."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainwright.errors import UserError
from trainwright.train.data import Corpus, batch, load


def test_the_standard_library_is_there_and_the_same_each_time() -> None:
    corpus = load(largest=300_000)
    assert len(corpus.text) == 300_000 and corpus.files > 5
    assert b"import " in corpus.text
    assert load(largest=300_000) == corpus


def test_sources_are_read_in_sorted_order_and_cut(tmp_path: Path) -> None:
    for name, text in {
        "b.py": "bbbb",
        "a.py": "aaaa",
        "sub/c.py": "cccc",
        "x.txt": "no",
        "test/t.py": "no",
        "site-packages/p.py": "no",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert load(str(tmp_path)) == Corpus(b"aaaabbbbcccc", 3)
    assert load(str(tmp_path), largest=6) == Corpus(b"aaaabb", 2)


def test_no_sources_is_a_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no Python sources"):
        load(str(tmp_path))


@given(text=st.binary(min_size=2, max_size=200), seq_len=st.integers(1, 220), index=st.integers(0, 10**9))
def test_windows_lie_in_the_text(text: bytes, seq_len: int, index: int) -> None:
    corpus = Corpus(text, 1)
    if seq_len >= len(text):
        with pytest.raises(UserError, match="longer than"):
            corpus.window(index, seq_len)
    else:
        window = corpus.window(index, seq_len)
        assert len(window) == seq_len + 1 and window in text


def test_labels_are_the_next_tokens_and_batches_follow_each_other() -> None:
    corpus = Corpus(bytes(range(100)), 1)
    ids, labels = batch(corpus, 0, 2, 10, 256)
    assert ids.tolist() == [list(range(10)), list(range(10, 20))]
    assert torch.equal(labels, ids + 1)
    assert batch(corpus, 2, 1, 10, 256)[0].tolist() == [list(range(20, 30))]
    assert ids.dtype is torch.int64 and ids.is_contiguous() and labels.is_contiguous()


def test_a_small_vocabulary_folds_the_bytes_and_says_so() -> None:
    corpus = Corpus(bytes(range(256)), 1)
    ids, labels = batch(corpus, 0, 1, 255, 100)
    assert ids.max() < 100 and labels[0, -1] == 255 % 100
    assert corpus.to_json(100)["token"] == "byte modulo 100"
    assert corpus.to_json(8192)["token"] == "byte"
