"""Llama's tokenizer: SentencePiece's byte-pair encoding, with bytes for letters without a piece.

A vocabulary is pieces with scores: two neighbours become one piece where that is in the vocabulary,
best score first. `tokenizers` does it, told the scores as an order of merges.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, normalizers, processors

from decoding.models.files import Directory, ModelFileError, read_bytes, short
from decoding.models.layouts.options import integer
from decoding.text.tokenizers.backend import BackendTokenizer, read_backend, reading
from decoding.text.tokenizers.base import Tokenizer
from decoding.text.tokenizers.files import read_pieces
from decoding.text.tokenizers.pieces import WORD_START

UNK, BOS, EOS = SPECIAL = ("<unk>", "<s>", "</s>")  # their ids are 0 to 2, those of bytes follow
LONGEST = 1000  # letters of a piece; the work of one grows with their square
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def load_llama(directory: Directory, settings: dict[str, Any]) -> Tokenizer:
    whole = directory.find("tokenizer.json")
    if whole is not None:
        return BackendTokenizer(read_backend(whole))
    needs = "this model's text needs tokenizer.json or tokenizer.model"
    path = directory.required("tokenizer.model", needs)
    begins = settings.get("add_bos_token") in (None, True)
    return tokenizer_of(
        path, read_model(path), begins=begins, ends=bool(settings.get("add_eos_token"))
    )


def load_llama2c(directory: Directory, config: dict[str, Any]) -> Tokenizer:
    count = integer(config, "vocab_size", 1)
    name = config.get("tokenizer_file") or f"tok{count}.bin"
    needs = "the text of a model of llama2.c needs it"
    path = directory.required_named(name, "tokenizer_file", needs)
    pieces = read_model(path) if path.suffix == ".model" else read_bin(path, count)
    if len(pieces) != count:
        raise ModelFileError(f"{path} has {len(pieces)} pieces, the model {count}")
    return tokenizer_of(path, pieces)


def read_model(path: Path) -> list[tuple[str, float]]:
    """The pieces of a SentencePiece model, and their scores."""
    model, pieces = read_pieces(path)
    return [(piece, model.get_score(number)) for number, piece in enumerate(pieces)]


def read_bin(path: Path, count: int) -> list[tuple[str, float]]:
    """The same of llama2.c's form: the longest piece's length, then each one's score, length and
    bytes, a space in place of WORD_START. Raises ModelFileError behind `count` pieces."""
    data, pieces, begin = read_bytes(path), list[tuple[str, float]](), 4
    try:
        while begin < len(data):
            if len(pieces) == count:
                raise ModelFileError(f"{path} has more pieces than the model, {count}")
            score, length = struct.unpack_from("<fi", data, begin)
            begin += 8
            (piece,) = struct.unpack_from(f"{length}s", data, begin)
            begin += length
            pieces.append((piece.decode().replace(" ", WORD_START), score))
    except (struct.error, UnicodeDecodeError) as error:
        raise ModelFileError(f"{path} is no vocabulary of llama2.c: {short(error)}") from error
    return pieces


def tokenizer_of(
    path: Path, pieces: Sequence[tuple[str, float]], *, begins: bool = True, ends: bool = False
) -> BackendTokenizer:
    """path: the pieces' file. begins: add BOS; ends: add EOS."""
    longest = max((piece for piece, _ in pieces), key=len, default="")
    if len(longest) > LONGEST:
        raise ModelFileError(
            f"{path} has a piece of {len(longest)} letters, the most are {LONGEST}"
        )
    first = [*SPECIAL, *BYTES]  # files differ in how they write these
    vocab = {piece: number for number, piece in enumerate(first)}
    vocab |= {pieces[i][0]: i for i in range(len(first), len(pieces))}
    scores = {piece: score for piece, score in pieces[len(first) :]}
    ordered = sorted(scores, key=lambda piece: (-scores[piece], vocab[piece]))
    merges = [
        (piece[:cut], piece[cut:])
        for piece in ordered
        for cut in range(1, len(piece))
        if piece[:cut] in scores and piece[cut:] in scores
    ]
    with reading(path):
        model = tokenizers.models.BPE(
            vocab=vocab, merges=merges, unk_token=UNK, fuse_unk=True, byte_fallback=True
        )
    backend = tokenizers.Tokenizer(model)
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL])
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend(WORD_START), normalizers.Replace(" ", WORD_START)]
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace(WORD_START, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    template = [BOS] * begins + ["$A"] + [EOS] * ends
    marks = [(token, vocab[token]) for token in (BOS, EOS)]
    backend.post_processor = processors.TemplateProcessing(single=template, special_tokens=marks)
    return BackendTokenizer(backend)
