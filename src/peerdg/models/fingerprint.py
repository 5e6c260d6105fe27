"""Fingerprints of a network of the user's own, which no config describes."""

import hashlib
import re
from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

_LENGTH = 12  # hex digits
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # of a function in a module's text


def network_fingerprint(network: nn.Module) -> tuple[str, str]:
    """Two hashes: of what the network is, and of the values it starts from.

    The first is over its text and each parameter's and buffer's name, shape and type, and whether
    it is trained; the second over the values of all of them.
    """
    structure = hashlib.sha256(_ADDRESS.sub("", repr(network)).encode())
    values = hashlib.sha256()
    for name, tensor in chain(network.named_parameters(), network.named_buffers()):
        # A lazy parameter has neither shape nor values yet.
        shape = "lazy" if is_lazy(tensor) else tuple(tensor.shape)
        structure.update(f"\n{name} {tensor.dtype} {tensor.requires_grad} {shape}".encode())
        if not is_lazy(tensor):
            values.update(_bytes_of(tensor))
    return structure.hexdigest()[:_LENGTH], values.hexdigest()[:_LENGTH]


def _bytes_of(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
