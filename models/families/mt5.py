"""mT5 (Xue et al. 2021) as transformers' MT5ForConditionalGeneration stores it: T5 1.1."""

from __future__ import annotations

from decoding.models.families import t5

DEFAULTS = t5.DEFAULTS | {
    "feed_forward_proj": "gated-gelu",
    "scale_decoder_outputs": False,
}
convert = t5.convert
