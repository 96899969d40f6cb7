"""Files of all formats, cut into shards, answered and joined, by a job without a model."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from decoding.corpus import Task
from decoding.corpus.folder import Folder
from decoding.corpus.formats import parquet
from decoding.corpus.formats.blocks import Block, blocks, columns_of
from decoding.corpus.formats.compressed import reading, writing
from decoding.corpus.formats.layout import Layout, file_type, renamed
from decoding.corpus.formats.rows import rows_of
from decoding.corpus.isolation import Isolated
from decoding.corpus.job import Job
from decoding.corpus.merge import merge
from decoding.corpus.shard_answers import Setup, answered
from decoding.corpus.shards import Shard, cut
from tests.corpus.tasks import Capitals

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def run(inputs: list[Path], output: str, rows: int = 2, **options: Any) -> Job:
    """A whole job, in this process. rows: of a shard."""
    job = Job(Capitals(**options.pop("task", {})), inputs, output, shard_lines=2 * rows, **options)
    folder = Folder(job.plan.folder)
    folder.begin()
    names = tuple(source.path for source in job.plan.sources)
    plan = job.plan
    setup = Setup(job.task, plan.layout, plan.output, names, folder.path, 1, 1)
    counts = [0] * len(names)
    for shard in cut(plan.sources, plan.layout, plan.rows, []):
        found = answered(setup, Isolated(job.task.open("cpu", 1)), shard, lambda _: None)
        folder.commit([found])
        counts[shard.source] += shard.rows
    with pytest.raises(ValueError, match="rows, not"):  # more than shards have
        merge(plan, folder, [count + 1 for count in counts])
    merge(plan, folder, counts)
    folder.close()
    return job


def write(path: Path, text: str | bytes) -> Path:
    with writing(str(path), file_type(path.name, None).compression) as file:
        file.write(text.encode() if isinstance(text, str) else text)
    return path


def text_of(path: Path) -> str:
    with reading(str(path), file_type(path.name, None).compression) as (file, _):
        return str(file.read().decode())


@pytest.mark.parametrize("compression", ["", ".gz", ".zst"])
@pytest.mark.parametrize(
    ("ending", "given", "expected"),
    [
        (".txt", "a\r\n\nc d\ne", "A\n\nC D\nE\n"),
        (".txt", "\ufeffa\n", "A\n"),
        (".txt", "", ""),
        (
            ".jsonl",
            '{"id": 1, "text": "ä"}\n"b"\n\n{"text": 3}\n',
            '{"id": 1, "text": "ä", "capitals": "Ä", "length": 1}\n'
            '{"text": "b", "capitals": "B", "length": 1}\n'
            '{"text": "", "capitals": "", "length": 0}\n'
            '{"text": 3, "capitals": null}\n',
        ),
        (".jsonl", "{\n", '{"capitals": null}\n'),
        (".tsv", 'id\ttext\n1\ta "b\n\n2\n', 'id\ttext\tcapitals\n1\ta "b\tA "B\n\t\t\n\t\t\n'),
        (".tsv", "text\tid\n", "text\tid\tcapitals\n"),
        (
            ".csv",
            'text,n\n"a, ""b""",1\n"c\nd",2\n"e"f,3\n',
            'text,n,capitals\n"a, ""b""",1,"A, ""B"""\n"c\nd",2,"C\nD"\n,,\n',
        ),
        (
            ".csv",
            'n,text\n1,24" a\n2,28" b\n3,c\n',
            'n,text,capitals\n1,"24"" a","24"" A"\n2,"28"" b","28"" B"\n3,c,C\n',
        ),
        (
            ".csv",
            '\ufeff"n\nm",text\r\n1,a\rb\r\n2,"a\rb"\r\n',
            '"n\nm",text,capitals\n,,\n2,"a\rb","A\rB"\n',
        ),
    ],
)
def test_text_comes_back_with_answers(
    ending: str, compression: str, given: str, expected: str, tmp_path: Path
) -> None:
    """Cells without answers are rows that failed, in their places."""
    source = write(tmp_path / f"in{ending}{compression}", given)
    task = {"column": "text"} if ending in (".tsv", ".csv") else {}
    run([source], str(tmp_path / f"out{ending}{compression}"), task=task)
    assert text_of(tmp_path / f"out{ending}{compression}") == expected
    run([source], f"{tmp_path}/folder/", rows=3, task=task)
    assert text_of(tmp_path / f"folder/in{ending}{compression}") == expected


def test_a_lone_carriage_return_is_no_part_of_an_unquoted_cell(tmp_path: Path) -> None:
    """A row that other readers would read as two is refused, not cut."""
    source = write(tmp_path / "in.csv", "n,text\n1,Guten\rMorgen.\n2,b\n")
    run([source], str(tmp_path / "out.csv"))
    assert text_of(tmp_path / "out.csv") == "n,text,capitals\n,,\n2,b,B\n"
    [failed] = text_of(tmp_path / "out.csv.job/errors.jsonl").splitlines()
    assert json.loads(failed) == {
        "file": str(source),
        "row": 1,
        "reason": "no row of CSV: a cell with an end of a line, or a lone \\r, needs quotes",
        "text": "1,Guten\rMorgen.",
    }
    old = write(tmp_path / "old.csv", "n,text\r1,a\r")  # whose lines end with \r
    with pytest.raises(ValueError, match=r"old.csv, line 1: no row of CSV: .* lone \\r"):
        run([old], str(tmp_path / "out/old.csv"))


def test_tsv_without_a_header(tmp_path: Path) -> None:
    source = write(tmp_path / "in.tsv", "x\ta\ny\tb\n")
    run([source], str(tmp_path / "out.tsv"), task={"column": "2", "key": "2"})
    assert text_of(tmp_path / "out.tsv") == "x\ta\tA\ny\tb\tB\n"


def table(**more: Any) -> Any:
    columns = {"id": list(range(7)), "text": ["a", "b", None, "d", "e", "bad", "g"], **more}
    return pa.table(columns)


@pytest.mark.parametrize("group", [1, 2, 3, 100])
@pytest.mark.parametrize("rows", [2, 3, 7, 10])
def test_parquet_keeps_columns_and_types(group: int, rows: int, tmp_path: Path) -> None:
    """Whatever the row groups, and whatever the lines of a shard."""
    given = table(tags=[["x"], [], None, [], [], [], ["y", "z"]])
    pq.write_table(given, tmp_path / "in.parquet", row_group_size=group)
    run([tmp_path / "in.parquet"], str(tmp_path / "out.parquet"), rows=rows, task={"group": 1})
    found = pq.read_table(tmp_path / "out.parquet")
    assert found.select(given.column_names).equals(given)
    assert found["capitals"].to_pylist() == ["A", "B", None, "D", "E", None, "G"]
    assert found.schema.field("length").type == pa.int64()


@pytest.mark.parametrize("done", range(5))
def test_finished_row_groups_are_passed_over(done: int, tmp_path: Path) -> None:
    path = str(tmp_path / "in.parquet")
    pq.write_table(table(), path, row_group_size=3)
    all_of = list(parquet.blocks(path, 2, 0))
    some = list(parquet.blocks(path, 2, done))
    assert [each[1:] for each in all_of] == [each[1:] for each in some]
    assert [bool(each[0]) for each in some] == [False] * min(done, 4) + [True] * (4 - min(done, 4))
    read = [
        [parquet.table(each[0]).to_pylist() for each in blocks[done:]] for blocks in (some, all_of)
    ]
    assert read[0] == read[1]


@pytest.mark.parametrize("rows", [0, 5])
@pytest.mark.parametrize("ending", [".csv", ".tsv", ".jsonl", ".txt"])
def test_parquet_becomes_text_and_text_parquet(ending: str, rows: int, tmp_path: Path) -> None:
    given = table().slice(0, rows)
    pq.write_table(given, tmp_path / "in.parquet")
    output: dict[str, Any] = {"output_format": "lines"} if ending == ".txt" else {}
    run([tmp_path / "in.parquet"], str(tmp_path / f"out{ending}"), **output)
    text = (tmp_path / f"out{ending}").read_text()
    if ending == ".jsonl":
        read = [json.loads(line) for line in text.splitlines()]
        assert [each["id"] for each in read] == given["id"].to_pylist()
    elif ending == ".txt":
        assert text == "A\nB\n\nD\nE\n"[: len(text)] and text.count("\n") == rows
    else:
        delimiter = "," if ending == ".csv" else "\t"
        read_rows = list(csv.reader(io.StringIO(text), delimiter=delimiter))
        assert read_rows[0] == ["id", "text", "capitals"] and len(read_rows) == rows + 1
        (tmp_path / "job").mkdir()
        back = tmp_path / "job/back.parquet"
        (tmp_path / f"out{ending}").write_text(text.replace("capitals", "before"))
        task = {"column": "text"}
        run([tmp_path / f"out{ending}"], str(back), output_format="parquet", task=task)
        assert pq.read_table(back)["id"].to_pylist() == [str(i) for i in range(rows)]


def test_several_inputs_become_one_output_or_one_each(tmp_path: Path) -> None:
    for name, text in {"b": "text\n1\n2\n3\n", "a": "text\n4\n", "c": "text\n"}.items():
        write(tmp_path / f"{name}.csv.gz", text)
    pattern = tmp_path / "[ab c].csv.gz"
    run([pattern], str(tmp_path / "out.csv"))
    assert (tmp_path / "out.csv").read_text() == "text,capitals\n4,4\n1,1\n2,2\n3,3\n"
    run([pattern], f"{tmp_path}/apart/")
    assert text_of(tmp_path / "apart/b.csv.gz") == "text,capitals\n1,1\n2,2\n3,3\n"
    assert text_of(tmp_path / "apart/c.csv.gz") == "text,capitals\n"
    run([pattern], f"{tmp_path}/json/", output_format="json")
    assert text_of(tmp_path / "json/a.jsonl.gz").startswith('{"text": "4"')
    assert (tmp_path / "out.csv.job/errors.jsonl").exists() is False


def test_rows_that_cannot_be_read(tmp_path: Path) -> None:
    """With their places and what they hold; --errors says otherwise."""
    source = write(tmp_path / "in.txt", b"a\nf\xfcr\nb\n")
    run([source], str(tmp_path / "out.txt"))
    [line] = (tmp_path / "out.txt.job/errors.jsonl").read_text().splitlines()
    assert json.loads(line) == {
        "file": str(source),
        "row": 2,
        "reason": "not UTF-8: byte 2 is 0xfc",
        "text": "f\\xfcr",
    }
    for errors, expected in {"replace": "A\nF\ufffdR\nB\n", "skip": "A\n\nB\n"}.items():
        run([source], f"{tmp_path}/{errors}.txt", errors=errors)
        assert text_of(tmp_path / f"{errors}.txt") == expected
    run([source], str(tmp_path / "latin.txt"), encoding="cp1252")
    assert text_of(tmp_path / "latin.txt") == "A\nFÜR\nB\n"


def test_a_row_of_json_loses_no_column_to_its_answer(tmp_path: Path) -> None:
    """It fails, and what it has itself is not taken for an answer."""
    given = '{"text": "a", "length": 10}\n{"text": "b", "capitals": "mine", "id": 1}\n'
    source = write(tmp_path / "in.jsonl", given)
    run([source], str(tmp_path / "out.jsonl"))
    expected = '{"text": "a", "capitals": null}\n{"text": "b", "id": 1, "capitals": null}\n'
    assert text_of(tmp_path / "out.jsonl") == expected
    failed = text_of(tmp_path / "out.jsonl.job/errors.jsonl").splitlines()
    found = [json.loads(line) for line in failed]
    assert found[0]["reason"] == (
        "the row has a column 'length' already, which the answer would have: rename it"
    )
    assert "".join(f"{each['text']}\n" for each in found) == given
    run([source], str(tmp_path / "out.txt"), output_format="lines")  # where nothing is lost
    assert text_of(tmp_path / "out.txt") == "A\nB\n"


def test_damaged_files_are_named(tmp_path: Path) -> None:
    whole = gzip.compress(b"a\n" * 1000, mtime=0)
    (tmp_path / "cut.txt.gz").write_bytes(whole[:-9])
    (tmp_path / "no.txt.zst").write_bytes(b"a\n")
    (tmp_path / "no.parquet").write_bytes(b"a\n")
    pq.write_table(pa.table({"text": ["a", "b"]}), tmp_path / "page.parquet")
    page = (tmp_path / "page.parquet").read_bytes()
    (tmp_path / "page.parquet").write_bytes(page[:4] + b"\xff" * 8 + page[12:])
    pq.write_table(pa.table({"text": ["a"] * 77}), tmp_path / "count.parquet")
    count = (tmp_path / "count.parquet").read_bytes()
    (tmp_path / "count.parquet").write_bytes(count.replace(b"\x16\x9a\x01", b"\x16\x98\x01", 1))
    names = ["text", "x", "x"]
    pq.write_table(pa.Table.from_arrays([["a"]] * 3, names), tmp_path / "twice.parquet")
    os.mkfifo(tmp_path / "pipe.txt")
    write(tmp_path / "open.csv", 'text\n"a\nb\n')
    write(tmp_path / "twice.csv", "text,text\n")
    write(tmp_path / "taken.csv", "text,capitals\n")
    messages = {
        "cut.txt.gz": "cut.txt.gz cannot be decompressed",
        "no.txt.zst": "no.txt.zst cannot be decompressed",
        "no.parquet": "is no Parquet file",
        "page.parquet": "page.parquet is no Parquet file",
        "count.parquet": "count.parquet is damaged: it counts 76 rows, its groups 77",
        "pipe.txt": "pipe.txt is no file",
        "open.csv": "line 2: a quote is opened here and never closed",
        "twice.csv": "two columns named 'text'",
        "twice.parquet": "two columns named 'x'",
        "taken.csv": "has a column 'capitals' already",
    }
    for name, message in messages.items():
        with pytest.raises(ValueError, match=message):
            run([tmp_path / name], str(tmp_path / "out" / name), task={"column": None})


def test_a_text_that_is_none_fails_alone(tmp_path: Path) -> None:
    """Nobody looks at the bytes of a Parquet file before."""
    binary = pa.array([b"a", b"\xff", b"c"], pa.binary())
    text = pa.Array.from_buffers(pa.string(), 3, binary.buffers())
    pq.write_table(pa.table({"text": text}), tmp_path / "in.parquet")
    run([tmp_path / "in.parquet"], str(tmp_path / "out.jsonl"))
    answers = [
        json.loads(line)["capitals"] for line in text_of(tmp_path / "out.jsonl").split("\n")[:-1]
    ]
    assert answers == ["A", None, "C"]
    [failed] = text_of(tmp_path / "out.jsonl.job/errors.jsonl").splitlines()
    assert json.loads(failed)["row"] == 2 and "a value cannot be read" in failed


def test_a_time_in_an_unknown_zone_fails_its_row(tmp_path: Path) -> None:
    """Parquet still carries it through."""
    times = pa.array([0, None, 1], pa.timestamp("us", "Mars/Olympus"))
    pq.write_table(pa.table({"text": ["a", "b", "c"], "time": times}), tmp_path / "in.parquet")
    for name in ("out.jsonl", "out.parquet"):
        run([tmp_path / "in.parquet"], str(tmp_path / name), rows=3)
        failed = text_of(tmp_path / f"{name}.job/errors.jsonl").splitlines()
        assert [json.loads(line)["row"] for line in failed] == [1, 3]
        assert all("a value cannot be read" in line and "Mars" in line for line in failed)
    found = pq.read_table(tmp_path / "out.parquet")
    assert found["time"].combine_chunks().equals(times)
    assert found["capitals"].to_pylist() == [None, "B", None]


def test_a_damaged_folder_is_named(tmp_path: Path) -> None:
    """That of a job which is resumed: here it is, with all but its outputs."""
    source = write(tmp_path / "in.txt", "bad a\nb\nc\n")
    job = run([source], str(tmp_path / "out.txt"))
    folder = job.plan.folder
    journal = (folder / "shards.jsonl").read_text()
    damages = {
        "shards.jsonl": (journal.replace("rows", 6000 * "[", 1), "shards.jsonl, line 1 is damaged"),
        "shard-000000.errors.jsonl": ("x\n", "errors.jsonl has changed since it was written"),
        "manifest.json": ("3", "manifest.json is damaged: it is 3"),
    }
    for name, (text, message) in damages.items():
        before = (folder / name).read_text() if (folder / name).exists() else "{}"
        (folder / name).write_text(text)
        with pytest.raises(ValueError, match=message) as raised:
            Job(Capitals(), [source], tmp_path / "out.txt", shard_lines=4, resume=True).run()
        assert len(str(raised.value)) < 1000
        (folder / name).write_text(before)


def test_what_does_not_go_together(tmp_path: Path) -> None:
    text = write(tmp_path / "in.txt", "a\n")
    for name, columns in {"a.csv": "text,x\n", "b.csv": "text,y\n"}.items():
        write(tmp_path / name, columns)
    with pytest.raises(ValueError, match="the inputs of one job have the same columns"):
        run([tmp_path / "a.csv", tmp_path / "b.csv"], str(tmp_path / "out.csv"))
    with pytest.raises(ValueError, match="has no column 'z': it has text, x"):
        run([tmp_path / "a.csv"], str(tmp_path / "out.csv"), task={"column": "z"})
    with pytest.raises(ValueError, match="leave .gz out"):
        file_type("a.parquet.gz", None)
    task = Task("translate", "demo", options={"n_best": 2})
    with pytest.raises(ValueError, match="several answers of a row need JSON lines"):
        Job(task, [text], tmp_path / "out.txt")
    assert Job(Task("embed", "demo"), [text], f"{tmp_path}/to/").plan.output.type.kind == "json"


def test_names_of_outputs() -> None:
    def name(given: str, kind: str) -> str:
        before = file_type(given, None)
        compression = "" if kind == "parquet" else before.compression
        return renamed(given, before, file_type("x" + compression, kind))

    assert name("a.de.txt.gz", "lines") == "a.de.txt.gz"
    assert name("a.de.txt.gz", "json") == "a.de.jsonl.gz"
    assert name("a.ndjson", "lines") == "a.txt"
    assert name("a.csv.zst", "parquet") == "a.parquet"


def test_a_block_is_all_that_memory_holds(tmp_path: Path) -> None:
    """And the position in the file grows with them, which the time left is computed of."""
    source = write(tmp_path / "in.txt", "line\n" * 100_000)
    found = blocks(
        str(source), file_type("in.txt", None), Layout("lines", ("t",), False, "t"), 9, 0
    )
    first = next(found)
    assert isinstance(first, Block) and first.rows == 9
    assert 0 < first.position < source.stat().st_size / 2
    assert columns_of(str(source), file_type("in.tsv", None), "utf-8", True) == ("line",)
    rows = rows_of([b"a"], Layout("json", None, False, "t"))
    assert rows[0].reason and "no JSON" in rows[0].reason
    assert Shard(0, 0, 0, 0, 1, "", 0.0, [b"secret"]).number == 0
