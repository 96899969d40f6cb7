"""The languages of a model that translates, by the codes that clients use: ISO 639-1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from decoding.server.errors import ApiError
from decoding.text.tokenizers import MarianTokenizer, MultilingualTokenizer, Tokenizer

# ISO 639-1, NLLB's code, the English name.
TABLE = """
    af afr_Latn Afrikaans; am amh_Ethi Amharic; ar arb_Arab Arabic; as asm_Beng Assamese;
    ast ast_Latn Asturian; az azj_Latn Azerbaijani; ba bak_Cyrl Bashkir; be bel_Cyrl Belarusian;
    bg bul_Cyrl Bulgarian; bn ben_Beng Bengali; bo bod_Tibt Tibetan; bs bos_Latn Bosnian;
    ca cat_Latn Catalan; ceb ceb_Latn Cebuano; cs ces_Latn Czech; cy cym_Latn Welsh;
    da dan_Latn Danish; de deu_Latn German; el ell_Grek Greek; en eng_Latn English;
    eo epo_Latn Esperanto; es spa_Latn Spanish; et est_Latn Estonian; eu eus_Latn Basque;
    fa pes_Arab Persian; fi fin_Latn Finnish; fo fao_Latn Faroese; fr fra_Latn French;
    ga gle_Latn Irish; gd gla_Latn Scottish Gaelic; gl glg_Latn Galician; gn grn_Latn Guarani;
    gu guj_Gujr Gujarati; ha hau_Latn Hausa; he heb_Hebr Hebrew; hi hin_Deva Hindi;
    hr hrv_Latn Croatian; ht hat_Latn Haitian Creole; hu hun_Latn Hungarian;
    hy hye_Armn Armenian; id ind_Latn Indonesian; ig ibo_Latn Igbo; ilo ilo_Latn Iloko;
    is isl_Latn Icelandic; it ita_Latn Italian; ja jpn_Jpan Japanese; jv jav_Latn Javanese;
    ka kat_Geor Georgian; kk kaz_Cyrl Kazakh; km khm_Khmr Khmer; kn kan_Knda Kannada;
    ko kor_Hang Korean; ku kmr_Latn Kurdish; ky kir_Cyrl Kyrgyz; lb ltz_Latn Luxembourgish;
    lg lug_Latn Ganda; ln lin_Latn Lingala; lo lao_Laoo Lao; lt lit_Latn Lithuanian;
    lv lvs_Latn Latvian; mg plt_Latn Malagasy; mi mri_Latn Maori; mk mkd_Cyrl Macedonian;
    ml mal_Mlym Malayalam; mn khk_Cyrl Mongolian; mr mar_Deva Marathi; ms zsm_Latn Malay;
    mt mlt_Latn Maltese; my mya_Mymr Burmese; nb nob_Latn Norwegian Bokmål; ne npi_Deva Nepali;
    nl nld_Latn Dutch; nn nno_Latn Norwegian Nynorsk; ns nso_Latn Northern Sotho;
    oc oci_Latn Occitan; or ory_Orya Odia; pa pan_Guru Punjabi; pl pol_Latn Polish;
    ps pbt_Arab Pashto; pt por_Latn Portuguese; ro ron_Latn Romanian; ru rus_Cyrl Russian;
    rw kin_Latn Kinyarwanda; sa san_Deva Sanskrit; sd snd_Arab Sindhi; si sin_Sinh Sinhala;
    sk slk_Latn Slovak; sl slv_Latn Slovenian; sn sna_Latn Shona; so som_Latn Somali;
    sq als_Latn Albanian; sr srp_Cyrl Serbian; ss ssw_Latn Swati; st sot_Latn Southern Sotho;
    su sun_Latn Sundanese; sv swe_Latn Swedish; sw swh_Latn Swahili; ta tam_Taml Tamil;
    te tel_Telu Telugu; tg tgk_Cyrl Tajik; th tha_Thai Thai; ti tir_Ethi Tigrinya;
    tk tuk_Latn Turkmen; tl tgl_Latn Tagalog; tn tsn_Latn Tswana; tr tur_Latn Turkish;
    ts tso_Latn Tsonga; tt tat_Cyrl Tatar; ug uig_Arab Uyghur; uk ukr_Cyrl Ukrainian;
    ur urd_Arab Urdu; uz uzn_Latn Uzbek; vi vie_Latn Vietnamese; wo wol_Latn Wolof;
    xh xho_Latn Xhosa; yi ydd_Hebr Yiddish; yo yor_Latn Yoruba; zh zho_Hans Chinese;
    zh-Hant zho_Hant Chinese (traditional); zu zul_Latn Zulu"""
# Of M2M-100's alone.
NAMES = {"br": "Breton", "ff": "Fulah", "fy": "Western Frisian", "no": "Norwegian"}
OTHERS = {"no": "nb", "nb": "no", "iw": "he", "in": "id", "zt": "zh-Hant", "zh-tw": "zh-Hant"} | {
    "zh-hant": "zh-Hant",
    "fil": "tl",
}


@dataclass(frozen=True)
class Direction:
    """Where a text comes from and goes to. source, target: as the client is told; options: of
    Translator; prefix: what the text must begin with."""

    source: str
    target: str
    options: Mapping[str, str]
    prefix: str = ""


@dataclass(frozen=True)
class ServedLanguages:
    """What a model translates from and to: the model's own code by the client's.

    both: whether the codes are options of Translator; those of a pair need none, and a Marian
    model's targets are written before the text.
    """

    sources: Mapping[str, str]
    targets: Mapping[str, str]
    both: bool

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> ServedLanguages:
        if isinstance(tokenizer, MultilingualTokenizer):
            codes = {client_code(code): code for code in tokenizer.codes}
            return cls(codes, codes, True)
        if not isinstance(tokenizer, MarianTokenizer):
            return cls({}, {}, False)
        source, target = tokenizer.pair
        sources = {client_code(source): source} if isinstance(source, str) else {}
        targets = {client_code(code[2:-2]): code for code in tokenizer.target_codes}
        if not targets and isinstance(target, str):
            targets = {client_code(target): ""}
        return cls(sources, targets, False)

    def direction(self, source: str | None, target: str | None) -> Direction:
        """Raises ApiError for languages that the model lacks, and for a source or target that only
        the client can know. None, "auto" and "": not said."""
        source = self._chosen("source", source, self.sources)
        target = self._chosen("target", target, self.targets)
        if not self.both:
            prefix = self.targets.get(target, "")
            return Direction(source, target, {}, f"{prefix} " if prefix else "")
        given = {"src_lang": self.sources[source], "tgt_lang": self.targets[target]}
        return Direction(source, target, given)

    def _chosen(self, name: str, given: str | None, known: Mapping[str, str]) -> str:
        said = None if given in (None, "", "auto") else given
        if said is None:
            if len(known) > 1:
                raise ApiError(
                    400, f"{name} must be named: this server does not detect languages", param=name
                )
            return next(iter(known), "und")
        if not known:  # the model's files do not say, and so the client knows
            return said
        found = near_code(said, known)
        if found is None:
            listed = ", ".join(sorted(known))
            raise ApiError(
                400, f"{said[:32]!r} is no {name} language of this model, only {listed}", param=name
            )
        return found


@cache
def table() -> dict[str, tuple[str, str]]:
    """NLLB's code and the name, by ISO 639-1."""
    rows = (row.split(maxsplit=2) for row in TABLE.split(";"))
    return {code: (nllb, name) for code, nllb, name in rows}


def client_code(code: str) -> str:
    """ISO 639-1 of a model's code (deu_Latn, de_DE, deu, de), or the code where there is none."""
    by_nllb = {nllb: iso for iso, (nllb, _) in table().items()}
    if code in by_nllb:
        return by_nllb[code]
    short = code.split("_")[0]
    if "_" in code and len(short) == 3:  # another script or dialect than the table's
        return code
    by_three = {nllb[:3]: iso for nllb, iso in reversed(by_nllb.items())}
    return by_three.get(short, short)


def near_code(given: str, known: Mapping[str, str]) -> str | None:
    """The client's code of `known` that is meant: by another case, with a region, or by the model's
    own code."""
    forms = {code.lower(): code for code in known}
    forms |= {own.lower(): code for code, own in known.items() if own}
    said = given.lower().replace("_", "-")
    region = said.split("-")[0]
    tries = (
        given.lower(),
        said,
        OTHERS.get(said, said).lower(),
        region,
        OTHERS.get(region, region),
    )
    return next((forms[each] for each in tries if each in forms), None)


def name_of(code: str) -> str:
    return table()[code][1] if code in table() else NAMES.get(code, code)
