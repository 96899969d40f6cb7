"""The functions below the modules, by the names of torch.nn.functional."""

from decoding.nn.dropout import dropout
from decoding.nn.embedding import embedding
from decoding.nn.linear_loss import linear_cross_entropy
from decoding.nn.loss import cross_entropy
from decoding.nn.norm import add_layer_norm, add_rms_norm, layer_norm, rms_norm
from decoding.nn.softmax import softmax

__all__ = [
    "add_layer_norm",
    "add_rms_norm",
    "cross_entropy",
    "dropout",
    "embedding",
    "layer_norm",
    "linear_cross_entropy",
    "rms_norm",
    "softmax",
]
