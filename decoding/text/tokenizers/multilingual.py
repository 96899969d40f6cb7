"""Texts marked with their languages: mBART, mBART-50, M2M-100 and NLLB-200.

All of them number SentencePiece's pieces as fairseq does, and the languages' codes behind them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tokenizers import processors

from decoding.models.files import Directory, ModelFileError, short
from decoding.text.rows import Rows
from decoding.text.tokenizers.backend import BackendTokenizer, read_backend
from decoding.text.tokenizers.base import Tokenizer
from decoding.text.tokenizers.encoding import Row, Truncation
from decoding.text.tokenizers.files import (
    choice,
    read_optional,
    read_pieces,
    read_vocab,
    text_of,
)
from decoding.text.tokenizers.framed import FramedTokenizer
from decoding.text.tokenizers.pieces import Pieces, PieceTokenizer
from decoding.text.tokenizers.settings import TokenizerSettings

# The first tokens, whatever the SentencePiece model's own first three are.
BEGINNING = ("<s>", "<pad>", "</s>", "<unk>")
UNK, EOS, MASK = "<unk>", "</s>", "<mask>"
# de_DE, deu_Latn, and M2M-100's __de__.
CODE = re.compile(r"([a-z]{2}_[A-Z]{2}|[a-z]{3}_[A-Z][a-z]{3}|__[a-z]{2,3}__)")

MBART = """
    ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT lv_LV
    my_MM ne_NP nl_XX ro_RO ru_RU si_LK tr_TR vi_VN zh_CN""".split()
MBART50 = [*MBART, *"""
    af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF pt_XX
    sv_SE sw_KE ta_IN te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI""".split()]  # fmt: skip
M2M100 = """
    af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha
    he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne
    nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo
    xh yi yo zh zu""".split()
WMT21 = "en ha is ja cs ru zh de".split()


class M2M100Pieces(Pieces):
    """Pieces of text between special tokens, with no space behind these."""

    def behind(self, pieces: list[str]) -> str:
        return self.joined(pieces)


@dataclass(frozen=True)
class Marks:
    """The places of a family's language codes.

    source_first: the source's code before its text, else behind its EOS. starts: the target's code
    is what the decoder starts with, else what it must write first.
    """

    source_first: bool
    starts: bool
    source: str  # where nobody names one


@dataclass(repr=False)
class MultilingualTokenizer(FramedTokenizer):
    """A tokenizer of texts alone, and codes around them.

    codes: the id of each language. target: None where nobody has named one.
    """

    base: BackendTokenizer | PieceTokenizer
    codes: Mapping[str, int]
    eos: int
    marks: Marks
    source: str
    target: str | None
    settings: TokenizerSettings = TokenizerSettings()

    @property
    def tokens(self) -> Mapping[int, str]:
        return self.base.tokens

    @property
    def vocab_size(self) -> int:
        return self.base.vocab_size

    def __len__(self) -> int:
        return len(self.base)

    @property
    def src_lang(self) -> str:
        """The language of source texts, which may be set; transformers' name for it."""
        return self.source

    @src_lang.setter
    def src_lang(self, language: str) -> None:
        self.source = self._known("src_lang", language)

    @property
    def tgt_lang(self) -> str | None:
        """The language of target texts, in the same way."""
        return self.target

    @tgt_lang.setter
    def tgt_lang(self, language: str) -> None:
        self.target = self._known("tgt_lang", language)

    def _known(self, name: str, language: str) -> str:
        if language not in self.codes:
            known = ", ".join(sorted(self.codes))
            raise ValueError(f"{name}={language!r} is no language of this model, only {known}")
        return language

    def between(
        self, src_lang: str | None, tgt_lang: str | None, begins: Collection[int] = ()
    ) -> tuple[Tokenizer, dict[str, Any]]:
        """See `base.Languages`."""
        source, target = src_lang or self.source, tgt_lang or self.target
        for name, language in (("src_lang", source), ("tgt_lang", target)):
            if language is not None:
                self._known(name, language)
        if target is not None:
            option = "decoder_start_token_id" if self.marks.starts else "forced_bos_token_id"
            return replace(self, source=source, target=target), {option: self.codes[target]}
        begun = [language for language, number in self.codes.items() if number in begins]
        if not begun:
            raise ValueError(
                "this model writes many languages: say which one with tgt_lang, one of "
                + ", ".join(sorted(self.codes))
            )
        return replace(self, source=source, target=begun[0]), {}

    def cut(self, text: str) -> list[int]:
        return self.base.cut(text)

    def cut_batch(self, texts: list[str]) -> Rows:
        return self.base.cut_batch(texts)

    def framed(self, first: list[int], second: list[int] | None = None) -> list[int]:
        code, ids = self.codes[self.source], [*first, *(second or [])]
        return [code, *ids, self.eos] if self.marks.source_first else [*ids, self.eos, code]

    def rows(
        self,
        text: str,
        pair: str | None,
        special: bool,
        limit: Truncation | None,
        *,
        offsets: bool = False,
    ) -> list[Row]:
        library = offsets or (limit is not None and limit.stride is not None)
        if not library or isinstance(self.base, PieceTokenizer):
            return super().rows(text, pair, special, limit, offsets=offsets)
        return self.base.framed_rows(text, pair, special, limit, offsets, self._frame())

    def _frame(self) -> processors.TemplateProcessing:
        """What `framed` does, by the library: it knows what is cut off, and the characters."""
        marks = [("code", self.codes[self.source]), ("end", self.eos)]
        begin, end = (["code"], ["end"]) if self.marks.source_first else ([], ["end", "code"])
        return processors.TemplateProcessing(
            single=[*begin, "$A", *end], pair=[*begin, "$A", "$B", *end], special_tokens=marks
        )

    def for_target(self) -> Tokenizer:
        if self.target is None:
            raise ValueError(
                "the target's language is not known: set tokenizer.tgt_lang to one of "
                + ", ".join(sorted(self.codes))
            )
        return replace(self, source=self.target)

    def encode_target(self, text: str) -> list[int]:
        """The tokens around a text, without a code where the start token is one. Raises ValueError
        for an unknown language."""
        return [*self._target_code(), *self.base.cut(text), self.eos]

    def encode_target_batch(self, texts: list[str]) -> Rows:
        return self.cut_batch(texts).framed(self._target_code(), [self.eos])

    def _target_code(self) -> list[int]:
        if self.marks.starts:
            return []
        if self.target is None:
            raise ValueError("the target's language is not known: see Languages.between")
        return [self.codes[self.target]]

    def text_of(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        return self.base.text_of(ids, skip_special_tokens)

    def texts_of(self, rows: Rows, skip_special_tokens: bool) -> list[str]:
        return self.base.texts_of(rows, skip_special_tokens)

    def settled(self, ids: Sequence[int]) -> int:
        return self.base.settled(ids)

    @property
    def can_clean_up(self) -> bool:
        return self.base.can_clean_up

    def source_pieces(self, text: str) -> list[str | None]:
        return self.base.target_pieces(self.framed(self.cut(text)))

    def target_pieces(self, ids: Sequence[int]) -> list[str | None]:
        return self.base.target_pieces(ids)


def load_mbart(directory: Directory, settings: dict[str, Any]) -> Tokenizer:
    fifty = str(settings.get("tokenizer_class")).startswith("MBart50")
    marks = Marks(source_first=fifty, starts=not fifty, source="en_XX")
    return load(directory, settings, marks, MBART50 if fifty else MBART)


def load_m2m_100(directory: Directory, settings: dict[str, Any]) -> Tokenizer:
    """Loads M2M-100's tokenizer, whose vocab.json has the ids of the pieces, or NLLB-200's."""
    if not str(settings.get("tokenizer_class")).startswith("Nllb"):
        marks = Marks(source_first=True, starts=False, source="en")
        languages = WMT21 if settings.get("language_codes") == "wmt21" else M2M100
        return load(directory, settings, marks, [f"__{code}__" for code in languages])
    first = not choice(settings, "legacy_behaviour", False)
    marks = Marks(source_first=first, starts=False, source="eng_Latn")
    return load(directory, settings, marks, special_tokens(directory, settings))


def special_tokens(directory: Directory, settings: dict[str, Any]) -> list[str]:
    """The languages' codes as the directory's settings list them, in the order of their ids."""
    for where in (settings, read_optional(directory, "special_tokens_map.json")):
        for name in ("additional_special_tokens", "extra_special_tokens"):
            tokens = where.get(name) or []
            if not isinstance(tokens, list):
                raise ModelFileError(f"{name} must be a list of tokens, got {short(tokens)}")
            codes = [text for token in tokens if CODE.fullmatch(text := text_of(token, name))]
            if codes:
                return codes
    return []


def load(
    directory: Directory, settings: dict[str, Any], marks: Marks, languages: Sequence[str]
) -> Tokenizer:
    """languages: their codes in the order of their ids, where there is no tokenizer.json."""
    base: BackendTokenizer | PieceTokenizer
    whole = directory.find("tokenizer.json")
    if whole is not None:
        backend = read_backend(whole)
        ids = backend.get_vocab()
        base = BackendTokenizer(backend)
    else:
        needs = "this model's text needs tokenizer.json or sentencepiece.bpe.model"
        model, pieces = read_pieces(directory.required("sentencepiece.bpe.model", needs))
        vocab, kind = directory.find("vocab.json"), Pieces
        if any(code.startswith("__") for code in languages):
            needs = "it numbers the pieces of sentencepiece.bpe.model"
            vocab, kind = directory.required("vocab.json", needs), M2M100Pieces
        ids = numbers(pieces, None if vocab is None else read_vocab(vocab), languages)
        special = {*BEGINNING, MASK, *languages} & ids.keys()
        base = PieceTokenizer(kind(model, ids, special, UNK), ())
    codes = {token.strip("_"): ids[token] for token in ids if CODE.fullmatch(token)}
    source = settings.get("src_lang") or marks.source
    for language in (source, settings.get("tgt_lang")):
        if language is not None and str(language) not in codes:
            raise ModelFileError(
                f"{directory.path}: the vocabulary has no language {short(language)}; where there "
                "is no tokenizer.json, tokenizer_config.json lists them (extra_special_tokens)"
            )
    if EOS not in ids:
        raise ModelFileError(f"{directory.path}: the vocabulary has no {EOS!r}, which text needs")
    return MultilingualTokenizer(base, codes, ids[EOS], marks, source, settings.get("tgt_lang"))


def numbers(
    pieces: Sequence[str], vocab: Mapping[str, int] | None, languages: Sequence[str]
) -> dict[str, int]:
    """The id of each token: those of `vocab`, else fairseq's beginning and a model's pieces
    without its first three; then the languages and, without `vocab`, the mask."""
    if vocab is None:
        tokens = [*BEGINNING, *pieces[3:], *languages, MASK]
        return {token: number for number, token in enumerate(tokens)}
    return {**vocab, **{code: len(vocab) + i for i, code in enumerate(languages)}}
