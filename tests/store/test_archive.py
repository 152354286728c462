import lzma

import pytest

from laconic.errors import LaconicError
from laconic.store import archive
from laconic.store.records import append, read, rewrite

LINES = b'{"kind": "run", "x": 0.1}\n{"kind": "end"}\n'


@pytest.fixture
def packed(tmp_path):
    """A folder whose records are packed, and their plain path."""
    path = tmp_path / "one" / "records.jsonl"
    path.parent.mkdir()
    path.write_bytes(LINES)
    assert archive.main([str(tmp_path)]) == 1
    assert not path.exists()
    return path


def test_packed_records_read_as_the_plain_ones_and_unpack_to_the_same_bytes(packed):
    assert read(packed) == [{"kind": "run", "x": 0.1}, {"kind": "end"}]
    assert lzma.decompress(packed.with_name("records.jsonl.xz").read_bytes()) == LINES
    assert archive.main(["--unpack", str(packed.parent)]) == 1
    assert packed.read_bytes() == LINES
    assert [path.name for path in packed.parent.iterdir()] == ["records.jsonl"]


def test_both_forms_are_found_by_the_plain_path(packed):
    other = packed.parents[1] / "two" / "records.jsonl"
    assert archive.records_file(other) is None
    append(other, "run")
    assert archive.records_file(other) == other
    assert archive.records_file(packed) == packed.with_name("records.jsonl.xz")
    assert archive.record_files(packed.parents[1]) == [packed, other]


def test_appending_to_packed_records_unpacks_them_first(packed):
    append(packed, "more")
    assert [record["kind"] for record in read(packed)] == ["run", "end", "more"]
    assert packed.read_bytes().startswith(LINES)
    assert [path.name for path in packed.parent.iterdir()] == ["records.jsonl"]


def test_rewriting_packed_records_leaves_no_second_version(packed):
    rewrite(packed, [{"kind": "new"}])
    assert read(packed) == [{"kind": "new"}]
    assert [path.name for path in packed.parent.iterdir()] == ["records.jsonl"]


def test_a_torn_archive_is_one_clear_error(packed):
    file = packed.with_name("records.jsonl.xz")
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(LaconicError, match="no whole xz file"):
        read(packed)


def test_unpacking_overwrites_nothing(packed):
    packed.write_bytes(b"mine")
    with pytest.raises(LaconicError, match="out of date"):
        archive.main(["--unpack", str(packed.parent)])
    assert packed.read_bytes() == b"mine"


def test_no_folder_is_one_clear_error(tmp_path):
    with pytest.raises(LaconicError, match="is no folder"):
        archive.main([str(tmp_path / "none")])
