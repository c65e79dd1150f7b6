"""Files of rows with very many rows or columns, and rows of which the first lacks what tells the format."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.readers import file, read_evaluation
from sage_rlvr.verdicts.readers.file import RowFile

LINE = b'{"id": "%d", "n": 8, "c": 3}\n'


@pytest.fixture(autouse=True)
def _few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "ROWS", 10)


def rows_of_csv(rows: int) -> bytes:
    return b"id,n,c\n" + b"".join(b"%d,8,3\n" % i for i in range(rows))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("text", [rows_of_csv(11), b"".join(LINE % i for i in range(11))], ids=["csv", "lines"])
def test_too_many_rows_are_refused_before_any_is_read(text: bytes, packed: bool, tmp_path: Path) -> None:
    """The second row repeats an id, which would be an error of its own."""
    text = text.replace(b"1,8", b"0,8", 1).replace(b'"1"', b'"0"', 1)
    (path := tmp_path / "rows").write_bytes(gzip.compress(text) if packed else text)
    with pytest.raises(DataError, match="more than 10 rows"):
        read_evaluation(path)


def test_line_ends_in_quotes_and_blank_lines_are_no_rows(tmp_path: Path) -> None:
    rows = b"".join(b'%d,1,"%s"\n' % (i, b"a\n" * (i == 3) * 6 + b'""b""') for i in range(9))
    (path := tmp_path / "rows.csv").write_bytes(b"id,correct,text\n" + rows)
    assert read_evaluation(path).rows == 9
    path.write_bytes(b"\n\n".join(LINE % i for i in range(10)) + b"\n")
    assert read_evaluation(path).rows == 10


def test_a_piece_of_a_file_may_end_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path := tmp_path / "rows.csv").write_bytes(b'id,correct,text\n0,1,"a\n\n""\nb"\n' + b"1,1,c\n" * 9)
    for size in (1, 2, 3, 5):
        monkeypatch.setattr("sage_rlvr.safe_io.MIB", size)
        RowFile(path).check_size()
    path.write_bytes(path.read_bytes() + b"1,1,c\n")
    with pytest.raises(DataError, match="more than 10 rows"):
        RowFile(path).check_size()


def test_too_many_columns_are_refused(tmp_path: Path) -> None:
    (path := tmp_path / "rows.csv").write_bytes(b"id," + b"a," * 20_000 + b"c\n")
    with pytest.raises(DataError, match="20,002 columns"):
        read_evaluation(path)


def test_the_format_is_told_by_the_first_rows_and_not_by_the_first_alone(tmp_path: Path) -> None:
    (path := tmp_path / "rows.jsonl").write_text('{"id": "a"}\n{"id": "a", "correct": true}\n{"id": "b", "correct": false}\n')
    with pytest.raises(DataError, match=r"rows\.jsonl:1"):
        read_evaluation(path)
    path.write_text('{"id": "a"}\n{"id": "b", "reward": 1}\n')
    with pytest.raises(DataError, match="the keys id, reward"):
        read_evaluation(path)
