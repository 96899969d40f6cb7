"""UMT5 (Chung et al. 2023) as transformers' UMT5ForConditionalGeneration stores it: mT5 with biases
by distance of each layer's own. transformers 5 scales its output, whatever a file says of ties."""

from __future__ import annotations

from functools import partial

from decoding.models.families import mt5, t5

# Published files lack their model_type.
DEFAULTS = mt5.DEFAULTS | {"model_type": "umt5", "scale_decoder_outputs": True}
convert = partial(t5.convert, bias_by_layer=True)
