from __future__ import annotations

import numpy as np
import pytest

from facelink import embeddings
from facelink.embeddings import Parts, UnitRows, as_embeddings
from facelink.errors import FacelinkError, InputError


def test_rows_have_unit_length_and_keep_their_direction():
    x = np.array([[3.0, 4.0], [-1.0, 0.0], [1e-3, 1e-3]])
    rows = UnitRows(x)[:]
    assert rows.dtype == np.float32
    np.testing.assert_allclose(rows, [[0.6, 0.8], [-1, 0], [2**-0.5, 2**-0.5]], rtol=1e-6)


@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1e160, 1e300])
def test_extreme_scales_neither_overflow_nor_vanish(scale):
    rows = UnitRows(np.array([[3.0, 4.0]]) * scale)[:]
    np.testing.assert_allclose(rows, [[0.6, 0.8]], rtol=1e-6)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.int32, np.uint8])
def test_all_kinds_of_numbers_are_taken(kind):
    rows = UnitRows(np.array([[3, 4], [5, 12]], kind))[:]
    np.testing.assert_allclose(rows, [[0.6, 0.8], [5 / 13, 12 / 13]], rtol=1e-6)


def test_a_large_collection_read_piece_by_piece_gives_the_same_bits(monkeypatch, faces, tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, faces.embeddings.astype(np.float16) * 3)
    whole = UnitRows(np.load(path))
    monkeypatch.setattr(embeddings, "IN_MEMORY_BYTES", 0)
    monkeypatch.setattr(embeddings, "BLOCK_BYTES", 5000)
    pieces = UnitRows(np.load(path, mmap_mode="r"))
    assert pieces.array is None
    some = np.array([5, 0, 17])
    np.testing.assert_array_equal(pieces[some], whole[some])
    np.testing.assert_array_equal(pieces[3:9], whole[3:9])


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (np.zeros((0, 4)), "empty: 0 items"),
        (np.zeros((4, 0)), "empty: 4 items of 0 dimensions"),
        (np.zeros(5), "got 1-d"),
        (np.zeros((2, 3, 4)), "got 3-d"),
        (np.float32(1), "a single number"),
        (np.array([["a", "b"]]), "got an array of text"),
        (np.array([[1, None]], object), "got an array of Python objects"),
        (np.array([[1j, 2]]), "complex numbers"),
        ([[1, 2], [3]], "different lengths"),
    ],
)
def test_a_wrong_form_is_refused_with_what_came(bad, said):
    with pytest.raises(InputError, match=said):
        as_embeddings(bad)


def test_rows_that_are_not_finite_are_named():
    x = np.ones((10, 3))
    x[4, 1], x[7, 0] = np.nan, np.inf
    with pytest.raises(InputError, match=r"NaN or infinity in 2 rows .*: 4, 7 \("):
        UnitRows(x)


def test_zero_vectors_are_named():
    x = np.ones((10, 3))
    x[6] = 0
    with pytest.raises(InputError, match=r"Zero vectors.* in 1 row .*: 6 \("):
        UnitRows(x)


def test_input_errors_are_value_errors_too():
    with pytest.raises(ValueError, match="2-d") as caught:
        as_embeddings(np.zeros(3))
    assert isinstance(caught.value, FacelinkError)


def test_parts_are_read_like_one_array():
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(n, 4)).astype(kind) for n, kind in ((3, "f2"), (1, "f4"), (5, "f4"))]
    whole, parts = np.concatenate(arrays), Parts(arrays)
    assert parts.shape == (9, 4)
    assert parts.dtype == np.float32
    for index in (
        slice(None),
        slice(2, 7),
        slice(0, 0),
        np.array([8, 0, 3, 3]),
        np.arange(9)[::-1],
    ):
        np.testing.assert_array_equal(parts[index], whole[index])
    np.testing.assert_array_equal(np.asarray(parts), whole)
    np.testing.assert_array_equal(UnitRows(parts)[:], UnitRows(whole)[:])


@pytest.mark.parametrize("in_memory", [1 << 30, 0])
def test_some_rows_are_taken_in_their_order(in_memory, monkeypatch):
    monkeypatch.setattr("facelink.embeddings.IN_MEMORY_BYTES", in_memory)
    rows = UnitRows(np.random.default_rng(0).normal(size=(9, 4)))
    items = np.array([7, 2, 3])
    taken = rows.taking(items)
    assert len(taken) == 3
    np.testing.assert_array_equal(taken[:], rows[items])
    np.testing.assert_array_equal(taken.taking(np.array([2, 0]))[np.array([1])], rows[items[:1]])
