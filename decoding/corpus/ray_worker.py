"""A task as what Ray Data maps over batches of rows. It needs nothing of Ray itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from decoding.corpus.isolation import Isolated
from decoding.corpus.row_task import Answer, Failed, RowTask


class RayWorker:
    """Answers batches of rows in an actor, which loads the model once.

        rows.map_batches(RayWorker, fn_constructor_args=[task], concurrency=2, num_gpus=1)

    A batch is a column of values by name, as Ray Data's batch_format="numpy" gives it, and comes
    back with the columns of the answers and `error`: why a row has none, and None where it has one.
    row_column: a column with the numbers of rows, which samples with a seed depend on. device: in
    an actor that was given a GPU "auto" is that one.

    Raises what RowTask.open() does, and ValueError for a seed without row_column and for a batch
    that has one of these columns already.
    """

    def __init__(self, task: RowTask, row_column: str | None = None, device: str = "auto") -> None:
        options = getattr(task, "options", {})
        if options.get("seed") is not None and row_column is None:
            raise ValueError("samples with a seed need the rows' numbers: pass row_column")
        self._answers, self._row_column = task.answers, row_column
        self._answerer = Isolated(task.open(device, 1))

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        both = [name for name in (*self._answers, "error") if name in batch]
        if both:
            raise ValueError(
                f"the rows have a column {both[0]!r} already, which the answers would have: "
                "rename it"
            )
        columns = {name: plain(values) for name, values in batch.items()}
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        numbers = columns[self._row_column] if self._row_column else list(range(len(rows)))
        answers: list[Answer | Failed] = [Failed("no answer")] * len(rows)
        asked = {}
        for i, row in enumerate(rows):
            try:
                asked[i] = self._answerer.read(row)
            except ValueError as error:
                answers[i] = Failed(str(error))
        sound = iter(asked)
        for group in self._answerer(list(asked.values()), [numbers[i] for i in asked]):
            for answer in group:
                answers[next(sound)] = answer
        given = [None if isinstance(answer, Failed) else answer for answer in answers]
        found: dict[str, Any] = {
            name: [None if answer is None else answer.get(name) for answer in given]
            for name in self._answers
        }
        found["error"] = [str(each) if isinstance(each, Failed) else None for each in answers]
        return {**batch, **found}


def plain(values: Any) -> list[Any]:
    """A column, also of NumPy's, as Python's own values."""
    return list(values.tolist() if hasattr(values, "tolist") else values)
