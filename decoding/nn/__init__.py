"""Fused modules for training, drop-in for those of torch.nn by the same names.

On the CPU and on NVIDIA GPUs, in float32, float16 and bfloat16 (on the CPU float64 too). Each is a
torch custom operator, so torch.compile takes it as it is; there is no second derivative.
"""

from decoding.nn import functional
from decoding.nn.dropout import Dropout
from decoding.nn.embedding import Embedding
from decoding.nn.fuse import fuse
from decoding.nn.linear_loss import LinearCrossEntropyLoss
from decoding.nn.loss import CrossEntropyLoss
from decoding.nn.norm import LayerNorm, RMSNorm
from decoding.nn.softmax import Softmax

__all__ = [
    "CrossEntropyLoss",
    "Dropout",
    "Embedding",
    "LayerNorm",
    "LinearCrossEntropyLoss",
    "RMSNorm",
    "Softmax",
    "functional",
    "fuse",
]
