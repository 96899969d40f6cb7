"""Reads the settings of a tokenizer: tokenizer_config.json, and what lies beside it."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any

from decoding.models.files import CONFIGURATION, Directory, ModelFileError, read_text, short
from decoding.text.tokenizers import blenderbot_small, byte_level, wordpiece
from decoding.text.tokenizers.files import chat_templates, choice, read_optional, text_of
from decoding.text.tokenizers.settings import NAMES, UNLIMITED, TokenizerSettings

END = {name: "<|endoftext|>" for name in ("bos_token", "eos_token", "unk_token")}
FAIRSEQ = {**byte_level.FAIRSEQ, "sep_token": "</s>", "cls_token": "<s>"}
LLAMA = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
T5 = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
GEMMA = {
    "bos_token": "<bos>",
    "eos_token": "<eos>",
    "unk_token": "<unk>",
    "pad_token": "<pad>",
    "mask_token": "<mask>",
}

# The special tokens of transformers' class of each model_type, and of other toolkits, where the
# files name none and the vocabulary has them.
DEFAULTS: dict[str, dict[str, str]] = {
    **dict.fromkeys(("bart", "blenderbot", "mbart", "roberta", "xlm-roberta", "m2m_100"), FAIRSEQ),
    **dict.fromkeys(("bert", "distilbert"), wordpiece.SPECIAL),
    **dict.fromkeys(("gpt2", "gptj", "phi"), END),
    **dict.fromkeys(("llama", "mistral", "openelm", "phi3", "llama2c"), LLAMA),
    **dict.fromkeys(("t5", "mt5", "umt5", "marian", "marian_npz"), T5),
    **dict.fromkeys(("gemma", "gemma2"), GEMMA),
    **dict.fromkeys(("qwen2", "qwen3"), {**END, "pad_token": "<|endoftext|>"}),
    "blenderbot-small": blenderbot_small.SPECIAL,
    "fairseq": {**LLAMA, "pad_token": "<pad>"},
    "gpt_neox": {**END, "pad_token": "<|padding|>"},
    "opennmt": {**LLAMA, "pad_token": "<blank>"},
    "pegasus": {**T5, "mask_token": "<mask_2>"},
}
# Classes of tokenizer_config.json whose special tokens are those that it names.
PLAIN = ("PreTrainedTokenizerFast", "TokenizersBackend")
CLASSES = {"m2m_100": "M2M100Tokenizer"}  # where the files name no class
# What a class lacks, or has beside those of its family.
WITHOUT = {
    "M2M100Tokenizer": ("cls_token", "mask_token"),
    "MBart50Tokenizer": ("bos_token",),
    "Qwen2Tokenizer": ("bos_token",),
}
LONGEST = {"marian": 512, "marian_npz": 512}  # model_max_length where the files are silent
LEFT = ("llama", "mistral", "gemma", "gemma2", "openelm", "phi3", "llama2c")  # their padding
TYPED = ("bert",)  # models that read token_type_ids


def read_settings(
    directory: Directory, family: str, config: Mapping[str, Any], vocabulary: Container[str]
) -> TokenizerSettings:
    """The settings of a model_type's tokenizer. config: its tokenizer_config.json."""
    others = read_optional(directory, "special_tokens_map.json")
    special = named_tokens(family, config, others, vocabulary)
    extra = config.get("extra_special_tokens", config.get("additional_special_tokens"))
    if extra is None:
        extra = others.get("extra_special_tokens", others.get("additional_special_tokens"))
    if isinstance(extra, Mapping):
        extra = list(extra.values())
    if not isinstance(extra or [], list):
        raise ModelFileError(f"extra_special_tokens must be a list of tokens, got {short(extra)}")
    padding = "left" if family in LEFT and not is_plain(config) else "right"
    names = config.get("model_input_names")
    longest = config.get("model_max_length") or LONGEST.get(family, UNLIMITED)
    if not isinstance(longest, (int, float)) or not longest > 0:
        raise ModelFileError(f"model_max_length must be a number above 0, got {short(longest)}")
    return TokenizerSettings(
        special_tokens=special,
        extra_special_tokens=tuple(text_of(each, "extra_special_tokens") for each in extra or ()),
        chat_template=read_templates(directory, config.get("chat_template")),
        model_max_length=int(min(longest, UNLIMITED)),
        padding_side=config.get("padding_side") or padding,
        truncation_side=config.get("truncation_side") or "right",
        token_type_ids=family in TYPED and (names is None or "token_type_ids" in names),
        clean_up_tokenization_spaces=choice(config, "clean_up_tokenization_spaces", False),
    )


def is_plain(config: Mapping[str, Any]) -> bool:
    return config.get("tokenizer_class") in PLAIN


def named_tokens(
    family: str, config: Mapping[str, Any], others: Mapping[str, Any], vocabulary: Container[str]
) -> dict[str, str]:
    """Special tokens by their names. others: special_tokens_map.json."""
    own = config.get("tokenizer_class") or CLASSES.get(family)
    missing: Iterable[str] = WITHOUT.get(str(own), ())
    defaults = {} if is_plain(config) else DEFAULTS.get(family, {})
    found = {}
    for name in NAMES:
        given = config[name] if name in config else others.get(name)
        if given is not None:
            found[name] = text_of(given, name)
        elif name not in config and name not in missing and defaults.get(name) in vocabulary:
            found[name] = defaults[name]
    return found


def read_templates(directory: Directory, given: Any) -> str | Mapping[str, str] | None:
    """The chat templates of a directory. given: what tokenizer_config.json says, if anything;
    files win over it, as in transformers."""
    named = {name: read_text(path, CONFIGURATION) for name, path in chat_templates(directory)}
    if not named and isinstance(given, list):
        entries = [entry for entry in given if isinstance(entry, dict)]
        named = {str(entry.get("name")): str(entry.get("template")) for entry in entries}
    elif not named:
        return None if given is None else str(given)
    return named["default"] if named.keys() == {"default"} else named
