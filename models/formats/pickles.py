"""torch.load for files that hold more than tensors, without running what they name.

Checkpoints of fairseq and OpenNMT-py hold their options and vocabularies as Python objects: of
argparse, of torchtext, of the toolkit itself. Here every class but those of tensors becomes a
StandIn, which only keeps the attributes that were stored; no code of the file's choice is called,
and nothing that outlives the call is changed.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import torch
from torch import Tensor

from decoding.models.files import ModelFileError, short
from decoding.models.formats.foreign import StandIn
from decoding.models.weights import torch_files

MOST_BYTES = 64 << 20  # of a file's part that is a pickle


def rebuilt(storage: Any, offset: Any, size: Any, stride: Any, *rest: object) -> Tensor:
    """torch._utils._rebuild_tensor_v2, which makes storages longer that are too short.

    rest: whether it was trained, and hooks.
    """
    typed = isinstance(storage, torch.storage.TypedStorage)
    counts = isinstance(size, tuple) and isinstance(stride, tuple) and len(size) == len(stride)
    if not typed or not counts or not all(map(is_count, (offset, *size, *stride))):
        raise pickle.UnpicklingError(f"a tensor has the size {short(size)}, steps {short(stride)}")
    last = sum((count - 1) * step for count, step in zip(size, stride, strict=True))
    numbers, tensor = storage._untyped_storage, torch.empty(0, dtype=storage.dtype)
    if 0 not in size and (offset + last + 1) * tensor.itemsize > numbers.nbytes():
        raise pickle.UnpicklingError(f"a tensor of the size {short(size)} has too few bytes")
    return tensor.set_(numbers, offset, size, stride)


def is_count(number: object) -> bool:
    return type(number) is int and 0 <= number < 1 << 48


def parameter(data: object, *rest: object) -> object:
    return data


def table(pairs: Mapping[Any, Any] | Iterable[Any] = ()) -> dict[Any, Any]:
    pairs = pairs.items() if isinstance(pairs, Mapping) else pairs
    return {checked_key(key): value for key, value in pairs}


def default_table(factory: object = None) -> dict[Any, Any]:
    return {}


def checked_key(key: object) -> object:
    """Tuples inside each other, a million deep, end the process when they are hashed."""
    if isinstance(key, tuple) and any(isinstance(each, tuple) for each in key):
        raise pickle.UnpicklingError(f"a dictionary has the key {short(key)}")
    return key


HARMLESS: dict[tuple[str, str], Callable[..., Any]] = {
    ("collections", "Counter"): table,
    ("collections", "OrderedDict"): table,
    ("collections", "defaultdict"): default_table,
    ("torch._utils", "_rebuild_parameter"): parameter,
    ("torch._utils", "_rebuild_tensor_v2"): rebuilt,
}
# What torch.save and Python's protocols 2 to 4 write of such objects. The others call methods,
# read what is in no file, or reserve memory for what they claim to hold.
OPCODES = """
    PROTO FRAME STOP MARK POP POP_MARK DUP BINPERSID GLOBAL STACK_GLOBAL REDUCE NEWOBJ BUILD NONE
    NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT STRING BINSTRING
    SHORT_BINSTRING UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8 BINBYTES SHORT_BINBYTES
    BINBYTES8 TUPLE EMPTY_TUPLE TUPLE1 TUPLE2 TUPLE3 LIST EMPTY_LIST APPEND APPENDS DICT EMPTY_DICT
    SETITEM SETITEMS PUT BINPUT LONG_BINPUT GET BINGET LONG_BINGET MEMOIZE
""".split()
CODES = {name: getattr(pickle, name)[0] for name in OPCODES}


class Unpickler(pickle._Unpickler):
    """torch.load derives its own from this one, and adds the storages of tensors.

    Python's own implementation, not the one in C, whose memo is as long as the largest index that a
    file names. size: bytes of the file.
    """

    size = 0
    stack: list[Any]
    append: Callable[[Any], None]
    pop_mark: Callable[[], list[Any]]
    dispatch = {code: pickle._Unpickler.dispatch[code] for code in CODES.values()}

    def __init__(self, file: BinaryIO, **options: Any) -> None:
        most = min(self.size, MOST_BYTES)
        super().__init__(BoundedReader(file, most), **options)

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        return HARMLESS.get((module, name), StandIn)

    def call(self) -> None:
        """REDUCE and NEWOBJ: of HARMLESS and stand-ins alone."""
        arguments, function = self.stack.pop(), self.stack.pop()
        known = isinstance(function, StandIn) or any(
            function is each for each in (StandIn, *HARMLESS.values())
        )
        if not known or not isinstance(arguments, tuple):
            raise pickle.UnpicklingError(f"{short(function)} would be called")
        self.append(function(*arguments))

    def build(self) -> None:
        """BUILD: attributes of a StandIn; those of a table, which torch adds, are left out."""
        state, made = self.stack.pop(), self.stack[-1]
        if isinstance(made, StandIn):
            state = state[0] if isinstance(state, tuple) and state else state  # and its slots
            if isinstance(state, dict) and all(isinstance(name, str) for name in state):
                made.__dict__.update(state)

    def set_item(self) -> None:
        value, key, made = self.stack.pop(), self.stack.pop(), self.stack[-1]
        self.fill(made, [key, value])

    def set_items(self) -> None:
        items = self.pop_mark()
        self.fill(self.stack[-1], items)

    def new_dictionary(self) -> None:
        made: dict[Any, Any] = {}
        self.fill(made, self.pop_mark())
        self.append(made)

    def fill(self, made: object, items: list[Any]) -> None:
        """items: keys and values in turns."""
        if not isinstance(made, dict):
            raise pickle.UnpicklingError(f"{short(made)} is no dictionary to fill")
        made.update(table(zip(items[::2], items[1::2], strict=True)))

    def storage(self) -> None:
        """BINPERSID: a storage, and no module, whose source torch.load would compare with its
        file's."""
        claim = self.stack.pop()
        kinds = (str, torch.serialization.StorageType, str, str, int)
        if (
            not isinstance(claim, tuple)
            or len(claim) not in (5, 6)
            or claim[0] != "storage"
            or not all(map(isinstance, claim, kinds))
            or not 0 <= claim[4] <= self.size
            or claim[5:] not in ((), (None,))
        ):
            raise pickle.UnpicklingError(f"{short(claim)} is no storage of a tensor")
        self.append(self.persistent_load(claim))

    dispatch |= {CODES["REDUCE"]: call, CODES["NEWOBJ"]: call}
    dispatch |= {CODES["SETITEM"]: set_item, CODES["SETITEMS"]: set_items}
    dispatch |= {CODES["DICT"]: new_dictionary, CODES["BUILD"]: build, CODES["BINPERSID"]: storage}


class BoundedReader:
    """A file of which no more is read at once than there is: files claim any lengths."""

    def __init__(self, file: BinaryIO, most: int) -> None:
        self._file, self._most = file, most
        self.readline = file.readline

    def read(self, count: int) -> bytes:
        if count > self._most:
            raise pickle.UnpicklingError(f"it claims to hold {count} more bytes")
        return self._file.read(count)


def read(path: Path) -> dict[str, Any]:
    """Raises ModelFileError where the file cannot be read or is no dictionary."""

    class Bounded(Unpickler):
        size = path.stat().st_size

    def load(file: BinaryIO, **options: Any) -> Any:
        """What torch.load calls for the parts of files that are older than torch 1.6."""
        return Bounded(file, **options).load()

    module = SimpleNamespace(__name__=__name__, Unpickler=Bounded, load=load)
    try:
        content = torch_files.load(path, pickle_module=module, weights_only=False)
    except (FileNotFoundError, ModelFileError):
        raise
    except Exception as error:  # a damaged file makes pickle and torch raise any
        raise ModelFileError(f"{path} cannot be read as a checkpoint: {short(error)}") from error
    if not isinstance(content, dict):
        raise ModelFileError(f"{path} must hold a dictionary, got {type(content).__name__}")
    return content
