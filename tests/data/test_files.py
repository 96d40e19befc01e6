import datetime

from gspo.data.files import rows_of
from tests.data.rows import datasets


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path):
    for name, text in (("a.csv", "prompt,answer\nx,1\n"), ("a.jsonl", '{"prompt": "x", "answer": "1"}')):
        (tmp_path / name).write_text(text, encoding="utf-8-sig")
        assert rows_of(tmp_path / name, "key") == [{"prompt": "x", "answer": "1"}]


def test_times_of_a_parquet_file_are_read(tmp_path):
    at = datetime.datetime(2026, 11, 22, 1, 2, 3)
    datasets.Dataset.from_list([{"prompt": "x", "at": at}]).to_parquet(str(tmp_path / "a.parquet"))
    assert rows_of(tmp_path / "a.parquet", "key") == [{"prompt": "x", "at": at}]
