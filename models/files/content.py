"""Contents of files: bytes, text and JSON, within bounds."""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from decoding.models.files.errors import ModelFileError, clipped, short

DEEPEST = 64  # lists and tables inside each other
SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")  # half a character, or half of a pair


class Bounds(NamedTuple):
    """The most that a file may hold."""

    bytes: int
    nodes: int  # numbers, strings, lists and tables of JSON or YAML


CONFIGURATION = Bounds(16 << 20, 500_000)
YAML_OPTIONS = Bounds(1 << 20, 20_000)  # of Marian: some hundred, in YAML, which is slow to read
VOCABULARY = Bounds(64 << 20, 8_000_000)
LINES = Bounds(32 << 20, 0)  # of a text that is read line by line


def open_file(path: Path) -> BinaryIO:
    """Opens a file to read. Raises FileNotFoundError where there is none, ModelFileError where it
    is a directory, a device or a pipe, which might never answer."""
    try:
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(f"{path} is missing") from None
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{clipped(str(path))} cannot be opened: {short(error)}") from error
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise ModelFileError(f"{path} is no regular file")
    return os.fdopen(number, "rb")


def read_bytes(path: Path, bounds: Bounds = VOCABULARY) -> bytes:
    """Raises ModelFileError for a longer file, and as open_file()."""
    with open_file(path) as file:
        content = file.read(bounds.bytes + 1) if size_of(file) <= bounds.bytes else None
    if content is None or len(content) > bounds.bytes:
        raise ModelFileError(f"{path} has more than {bounds.bytes >> 20} MiB: it is not read")
    return content


def size_of(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size


def read_text(path: Path, bounds: Bounds = VOCABULARY) -> str:
    """Of a file in UTF-8. Raises ModelFileError for another one, and as read_bytes()."""
    return decoded(read_bytes(path, bounds), str(path))


def decoded(content: bytes, where: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ModelFileError(
            f"{where} is not UTF-8: byte {error.start} is 0x{content[error.start]:02x}"
        ) from None


def read_json(path: Path, bounds: Bounds = CONFIGURATION) -> Any:
    """Raises ModelFileError where a file is no JSON or exceeds the bounds, and as read_bytes()."""
    return parse_json(read_bytes(path, bounds), str(path), bounds)


def read_object(path: Path, bounds: Bounds = CONFIGURATION) -> dict[str, Any]:
    """The same of a file that holds a JSON object."""
    content = read_json(path, bounds)
    if not isinstance(content, dict):
        raise ModelFileError(f"{path} must hold a JSON object, got {type(content).__name__}")
    return content


def parse_json(content: bytes, where: str, bounds: Bounds = CONFIGURATION) -> Any:
    """where: what the content is, for messages."""
    if 1 + sum(map(content.count, (b",", b"[", b"{"))) > 2 * bounds.nodes:
        raise ModelFileError(f"{where} has more than {bounds.nodes} entries")
    try:
        parsed = json.loads(decoded(content, where))
        if is_deep(parsed):
            raise RecursionError
        if SURROGATE.search(content):
            json.dumps(parsed, ensure_ascii=False).encode()
    except RecursionError:
        raise ModelFileError(f"{where} nests more than {DEEPEST} lists or tables") from None
    except UnicodeEncodeError:
        raise ModelFileError(f"{where} has half of a surrogate pair (\\ud800 to \\udfff)") from None
    except ModelFileError:
        raise
    except ValueError as error:
        raise ModelFileError(f"{where} is not valid JSON: {short(error)}") from error
    return parsed


def is_deep(content: object) -> bool:
    level = [content]
    for _ in range(DEEPEST + 1):
        tables = [each for each in level if isinstance(each, dict)]
        lists = [each for each in level if isinstance(each, list)]
        if not tables and not lists:
            return False
        level = [
            each for outer in (*lists, *(table.values() for table in tables)) for each in outer
        ]
    return True
