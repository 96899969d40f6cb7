"""numpy's .npy, written row by row: memory holds one row of it."""

from __future__ import annotations

import io
import shutil
import tempfile
from collections.abc import Iterable
from typing import TYPE_CHECKING

from decoding.cli.writing import Sink

if TYPE_CHECKING:
    import numpy as np


def write_rows(rows: Iterable[np.ndarray], width: int, sink: Sink) -> int:
    """Writes an array of float32 [rows, width] and returns the number of rows.

    The array begins with that number. A file gets it at the end, also where the rows end with an
    exception, so that it holds those before; a pipe gets the array from a temporary file.
    """
    position = sink.position()
    if position is None:
        return write_through_temporary_file(rows, width, sink)
    sink.write(header(0, width))
    count = 0
    try:
        for row in rows:
            sink.write(row_bytes(row))
            count += 1
    finally:
        sink.rewrite(header(count, width), position)
    return count


def write_through_temporary_file(rows: Iterable[np.ndarray], width: int, sink: Sink) -> int:
    with tempfile.TemporaryFile() as file:
        count = 0
        for row in rows:
            file.write(row_bytes(row))
            count += 1
        sink.write(header(count, width))
        file.seek(0)
        shutil.copyfileobj(file, sink)
    return count


def row_bytes(row: np.ndarray) -> bytes:
    return row.astype("<f4").tobytes()


def header(rows: int, width: int) -> bytes:
    """The bytes before the numbers, equally many for any number of rows: numpy pads them."""
    from numpy.lib import format

    file = io.BytesIO()
    written = {"descr": "<f4", "fortran_order": False, "shape": (rows, width)}
    format.write_array_header_1_0(file, written)
    return file.getvalue()
