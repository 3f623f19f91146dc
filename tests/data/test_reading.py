from __future__ import annotations

import os
import pickle

import numpy as np
import pytest

from facelink.data.reading import read_embeddings, read_labels
from facelink.errors import FacelinkError, FileError, InputError

X = np.arange(12, dtype=np.float32).reshape(4, 3) + 1


def test_npy_is_mapped_not_loaded(tmp_path):
    np.save(tmp_path / "x.npy", X)
    found = read_embeddings([tmp_path / "x.npy"])
    assert isinstance(found, np.memmap)
    np.testing.assert_array_equal(found, X)


def test_npz_bin_and_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    np.savez(tmp_path / "x.npz", x=X, other=1)
    X.tofile(tmp_path / "x.bin")
    table = pyarrow.table({"id": ["a", "b", "c", "d"], "embedding": list(X)})
    parquet.write_table(table, tmp_path / "lists.parquet")
    fixed = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(X.ravel()), 3)
    parquet.write_table(pyarrow.table({"embedding": fixed}), tmp_path / "fixed.parquet")
    columns = {"id": list("abcd")} | {f"d{i}": X[:, i] for i in range(3)}
    parquet.write_table(pyarrow.table(columns), tmp_path / "columns.parquet")
    for name in ("x.npz", "x.bin", "lists.parquet", "fixed.parquet", "columns.parquet"):
        np.testing.assert_array_equal(read_embeddings([tmp_path / name], dim=3), X, err_msg=name)


def test_parquet_that_does_not_hold_embeddings_says_so(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    cases = {
        "ragged": ({"embedding": [[1.0, 2.0], [3.0]]}, "lists of 1 to 2 numbers"),
        "missing": ({"embedding": [[1.0, 2.0], None]}, "1 rows of the column embedding are empty"),
        "text": ({"embedding": ["a", "b"]}, "lists of numbers"),
        "texts": ({"embedding": [["a"], ["b"]]}, "text|objects"),
        "names": ({"name": ["a", "b"]}, "neither a column 'embedding' nor numeric columns"),
    }
    for name, (columns, said) in cases.items():
        parquet.write_table(pyarrow.table(columns), tmp_path / f"{name}.parquet")
        with pytest.raises(InputError, match=said):
            read_embeddings([tmp_path / f"{name}.parquet"])
    (tmp_path / "no.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(FileError, match="not a Parquet file"):
        read_embeddings([tmp_path / "no.parquet"])


def test_an_empty_cell_is_refused_wherever_it_is(tmp_path, monkeypatch):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    monkeypatch.setattr("facelink.data.reading.PARQUET_ROWS", 2)
    whole = pyarrow.array([1, 2, 3, None], pyarrow.int8())
    lists = pyarrow.array([[1.0, 2.0], [3.0, 4.0], [5.0, None]])
    for name, column in (("a", whole), ("embedding", lists)):
        parquet.write_table(pyarrow.table({name: column}), tmp_path / "x.parquet")
        with pytest.raises(InputError, match=f"1 rows of the column {name} are empty"):
            read_embeddings([tmp_path / "x.parquet"])


def test_several_files_are_parts_of_one_collection(tmp_path):
    np.save(tmp_path / "a.npy", X[:1])
    np.savez(tmp_path / "b.npz", x=X[1:])
    np.save(tmp_path / "c.npy", X[:, :2])
    parts = [tmp_path / "a.npy", tmp_path / "b.npz"]
    np.testing.assert_array_equal(read_embeddings(parts), X)
    with pytest.raises(InputError, match=r"c.npy holds embeddings of 2 dimensions, .*a.npy of 3"):
        read_embeddings([*parts, tmp_path / "c.npy"])


def test_a_pickle_inside_an_array_is_not_run(tmp_path):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "trapped"), "w"))

    trap = np.array([[Trap()]], object)
    np.save(tmp_path / "x.npy", trap, allow_pickle=True)
    np.savez(tmp_path / "x.npz", x=trap)
    (tmp_path / "p.npy").write_bytes(pickle.dumps(Trap()))
    for name in ("x.npy", "x.npz", "p.npy"):
        with pytest.raises(FileError):
            read_embeddings([tmp_path / name])
    assert not (tmp_path / "trapped").exists()


def test_files_that_cannot_be_read_say_so(tmp_path):
    whole = tmp_path / "whole.npy"
    np.save(whole, X)
    content = whole.read_bytes()
    cases = {
        "cut.npy": (content[:-7], "truncated"),
        "header.npy": (content[:20], "truncated"),
        "empty.npy": (b"", "truncated"),
        "text.npy": (b"hello, world", "is not a .npy file of numbers"),
        "text.npz": (b"hello, world", "not an .npz"),
        "array.npz": (content, "not an .npz"),
        "odd.bin": (b"1234567", "not a whole number of float32 rows"),
        "empty.bin": (b"", "not a whole number"),
        "x.jpg": (b"", "expected one of .npy, .npz, .parquet, .bin"),
    }
    for name, (bytes_, said) in cases.items():
        (tmp_path / name).write_bytes(bytes_)
        with pytest.raises(FileError, match=said):
            read_embeddings([tmp_path / name], dim=3)
    np.savez(tmp_path / "y.npz", y=X)
    with pytest.raises(FileError, match="has no array 'x'; it holds y"):
        read_embeddings([tmp_path / "y.npz"])
    cut = tmp_path / "cut.npz"
    np.savez(cut, x=np.zeros((100, 10)))
    cut.write_bytes(cut.read_bytes()[:-400])
    with pytest.raises(FileError, match="truncated"):
        read_embeddings([cut])
    with pytest.raises(FileError, match="There is no file"):
        read_embeddings([tmp_path / "none.npy"])
    (tmp_path / "folder.npy").mkdir()
    with pytest.raises(FileError, match="is a folder"):
        read_embeddings([tmp_path / "folder.npy"])
    with pytest.raises(InputError, match="--dim"):
        read_embeddings([tmp_path / "odd.bin"])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_says_so(tmp_path):
    np.save(tmp_path / "x.npy", X)
    (tmp_path / "x.npy").chmod(0)
    with pytest.raises(FileError, match="Cannot read"):
        read_embeddings([tmp_path / "x.npy"])


def test_embeddings_of_a_wrong_form_name_the_file(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros(5))
    with pytest.raises(InputError, match=r"x.npy: Expected embeddings as a 2-d array"):
        read_embeddings([tmp_path / "x.npy"])


def test_labels_from_every_kind_of_file(tmp_path):
    y = np.array([3, 1, 3, 2])
    np.save(tmp_path / "y.npy", y)
    np.save(tmp_path / "f.npy", y.astype(float))
    np.savez(tmp_path / "y.npz", y=y)
    (tmp_path / "y.txt").write_text("3\n1\n3\n2\n")
    (tmp_path / "y.meta").write_text("3\n1\n3\n2")
    (tmp_path / "crlf.txt").write_bytes(b"3\r\n1\r\n3\r\n2\r\n")
    (tmp_path / "c.csv").write_text("item,cluster,confidence\n0,3,1\n1,1,1\n2,3,1\n3,2,.5\n")
    (tmp_path / "one.csv").write_text("who\n3\n1\n3\n2\n")
    (tmp_path / "bare.csv").write_text("3\n1\n3\n2\n")
    (tmp_path / "sorted.csv").write_text("item,cluster\n1,1\n3,2\n0,3\n2,3\n")
    (tmp_path / "named.csv").write_text("item,cluster\nd.jpg,3\nc.jpg,1\nb.jpg,3\na.jpg,2\n")
    names = ["y.npy", "f.npy", "y.npz", "y.txt", "y.meta", "crlf.txt", "c.csv", "one.csv",
             "bare.csv", "sorted.csv", "named.csv"]  # fmt: skip
    for name in names:
        found = read_labels(tmp_path / name)
        assert found.tolist() == y.tolist(), name
        assert found.dtype.kind == "i", name


def test_what_spreadsheets_add_is_no_part_of_a_label(tmp_path):
    (tmp_path / "bom.txt").write_bytes(b"\xef\xbb\xbf0\n0\n1\n")
    (tmp_path / "bom.csv").write_bytes(b"\xef\xbb\xbflabel\n0\n0\n1\n")
    for name in ("bom.txt", "bom.csv"):
        assert read_labels(tmp_path / name).tolist() == [0, 0, 1]


def test_labels_that_only_look_like_one_number_stay_apart(tmp_path):
    (tmp_path / "y.txt").write_text("007\n7\n1_0\n10\n")
    assert len(set(read_labels(tmp_path / "y.txt"))) == 4


def test_names_stay_text(tmp_path):
    (tmp_path / "y.txt").write_text("Zoë\n<script>\n7\n", encoding="utf-8")
    assert read_labels(tmp_path / "y.txt").tolist() == ["Zoë", "<script>", "7"]


def test_labels_that_cannot_be_read_say_so(tmp_path):
    np.save(tmp_path / "two.npy", np.zeros((3, 2)))
    np.save(tmp_path / "nan.npy", np.array([1, np.nan]))
    (tmp_path / "latin.txt").write_bytes(b"Zo\xeb\n")
    (tmp_path / "wide.csv").write_text("a,b\n1,2\n")
    (tmp_path / "gap.txt").write_text("1\n\n2\n")
    (tmp_path / "gap.csv").write_text("label\n1\n\n2\n")
    (tmp_path / "twice.csv").write_text("item,label\n0,1\n2,1\n2,2\n")
    cases = {
        "two.npy": "one label per item",
        "nan.npy": "NaN or infinity",
        "gap.txt": "no label in line 2",
        "gap.csv": "no label in line 3",
        "twice.csv": "number the 3 items from 0 to 2, each once; 1 is missing or comes twice",
        "x" * 300 + ".txt": "Cannot look for",
        "latin.txt": "not text in UTF-8",
        "wide.csv": "column cluster, label or identity",
        "none.txt": "There is no file",
        "y.pkl": "expected one of .npy, .npz, .csv, .txt, .meta",
    }
    for name, said in cases.items():
        with pytest.raises(FacelinkError, match=said):
            read_labels(tmp_path / name)
