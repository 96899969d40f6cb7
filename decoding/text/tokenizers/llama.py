"""Llama's tokenizer: SentencePiece's byte-pair encoding, with bytes for letters without a piece.

A vocabulary is pieces with scores: two neighbours become one piece where that is in the vocabulary,
best score first. `tokenizers` does it, told the scores as an order of merges.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from sentencepiece import SentencePieceProcessor
from tokenizers import AddedToken, decoders, normalizers, pre_tokenizers, processors

from decoding.models.files import Directory, ModelFileError, read_bytes, short
from decoding.models.layouts.options import integer
from decoding.text.tokenizers.backend import BackendTokenizer, kinds, read_backend, reading
from decoding.text.tokenizers.base import Tokenizer
from decoding.text.tokenizers.files import choice, read_pieces
from decoding.text.tokenizers.pieces import WORD_START

SPECIAL = ("<unk>", "<s>", "</s>")
LONGEST = 1000  # letters of a piece; the work of one grows with their square
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


@dataclass(frozen=True)
class Scored:
    """The pieces of a file, by their ids, and their scores.

    bos: empty where there is none. special: the unknown piece and all control tokens.
    symbols: what the file's author defined, which is one token wherever a text has it.
    """

    pieces: list[tuple[str, float]]
    unk: str
    bos: str
    special: list[str]
    symbols: list[str]


def load_llama(directory: Directory, settings: dict[str, Any]) -> Tokenizer:
    """Loads Llama's own tokenizer. Of Llama 2's published tokenizer.json, whose normalizer puts a
    space before every text between special tokens, transformers' class takes the vocabulary
    alone."""
    whole, own = directory.find("tokenizer.json"), ("LlamaTokenizer", "LlamaTokenizerFast")
    if whole is None or settings.get("tokenizer_class") not in own:
        return load_mistral(directory, settings)
    backend = read_backend(whole)
    if "Prepend" in kinds(backend.normalizer):
        spaced = choice(settings, "add_prefix_space", True)
        scheme = "always" if choice(settings, "legacy", False) else "first"
        backend.normalizer = None
        backend.pre_tokenizer = pre_tokenizers.Metaspace(
            WORD_START, prepend_scheme=scheme if spaced else "never", split=False
        )
        backend.decoder = decoder(spaced)
    return BackendTokenizer(backend)


def load_mistral(directory: Directory, settings: dict[str, Any]) -> Tokenizer:
    """Loads a tokenizer.json as it is, or SentencePiece's tokenizer.model."""
    whole = directory.find("tokenizer.json")
    if whole is not None:
        return BackendTokenizer(read_backend(whole))
    needs = "this model's text needs tokenizer.json or tokenizer.model"
    path = directory.required("tokenizer.model", needs)
    return tokenizer_of(path, read_model(path))


def load_llama2c(directory: Directory, config: dict[str, Any]) -> Tokenizer:
    count = integer(config, "vocab_size", 1)
    name = config.get("tokenizer_file") or f"tok{count}.bin"
    needs = "the text of a model of llama2.c needs it"
    path = directory.required_named(name, "tokenizer_file", needs)
    found = read_model(path) if path.suffix == ".model" else read_bin(path, count)
    if len(found.pieces) != count:
        raise ModelFileError(f"{path} has {len(found.pieces)} pieces, the model {count}")
    return tokenizer_of(path, found)


def read_model(path: Path) -> Scored:
    """The pieces of a SentencePiece model."""
    model, pieces = read_pieces(path)
    control = [piece for number, piece in enumerate(pieces) if model.is_control(number)]
    unk = pieces[model.unk_id()]  # the library refuses a model without one
    bos = pieces[model.bos_id()] if model.bos_id() >= 0 else ""
    scored = [(piece, model.get_score(number)) for number, piece in enumerate(pieces)]
    symbols = [pieces[number] for number in user_defined(model)]
    check_lengths(path, scored)
    return Scored(scored, unk, bos, [unk, *control], symbols)


def check_lengths(path: Path, pieces: list[tuple[str, float]]) -> None:
    longest = max((piece for piece, _ in pieces), key=len, default="")
    if len(longest) > LONGEST:
        raise ModelFileError(
            f"{path} has a piece of {len(longest)} letters, the most are {LONGEST}"
        )


def user_defined(model: SentencePieceProcessor) -> list[int]:
    """The ids of a model's user-defined symbols, for which the library has no question: those of
    the pieces, field 1 of the protocol buffer, that end with a field 3 of 4."""
    data, end, number, found = model.serialized_model_proto(), 0, 0, list[int]()
    while data[end : end + 1] == b"\x0a":
        length, shift, end = data[end + 1] & 127, 7, end + 2
        while data[end - 1] > 127:  # the length goes on in the next byte
            length, shift, end = length | (data[end] & 127) << shift, shift + 7, end + 1
        end += length
        if data.endswith(b"\x18\x04", end - length, end):
            found.append(number)
        number += 1
    return found


def read_bin(path: Path, count: int) -> Scored:
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
    check_lengths(path, pieces)
    first = [*SPECIAL, *BYTES]  # the form writes these as text
    named = [(name, score) for name, (_, score) in zip(first, pieces, strict=False)]
    return Scored([*named, *pieces[len(first) :]], "<unk>", "<s>", [*SPECIAL], [])


def tokenizer_of(path: Path, found: Scored) -> BackendTokenizer:
    """Texts begin with BOS. path: the pieces' file."""
    vocab = {piece: number for number, (piece, _) in enumerate(found.pieces)}
    alone = {*found.special, *found.symbols, *BYTES}
    scores = {piece: score for piece, score in found.pieces if piece not in alone}
    ordered = sorted(scores, key=lambda piece: (-scores[piece], vocab[piece]))
    merges = [
        (piece[:cut], piece[cut:])
        for piece in ordered
        for cut in range(1, len(piece))
        if piece[:cut] in scores and piece[cut:] in scores
    ]
    with reading(path):
        model = tokenizers.models.BPE(
            vocab=vocab, merges=merges, unk_token=found.unk, fuse_unk=True, byte_fallback=True
        )
    backend = tokenizers.Tokenizer(model)
    backend.add_special_tokens([AddedToken(text, normalized=False) for text in found.special])
    backend.add_tokens([AddedToken(text, normalized=False) for text in found.symbols])
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend(WORD_START), normalizers.Replace(" ", WORD_START)]
    )
    backend.decoder = decoder(spaced=True)
    begin = [found.bos] if found.bos in vocab else []
    backend.post_processor = processors.TemplateProcessing(
        single=[*begin, "$A"], special_tokens=[(text, vocab[text]) for text in begin]
    )
    return BackendTokenizer(backend)


def decoder(spaced: bool) -> decoders.Decoder:
    """spaced: texts have a space in front that is not theirs."""
    steps = [decoders.Replace(WORD_START, " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if spaced else steps)
