"""What peerdg asks of the machine: huge pages, and whether it knows bfloat16."""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def use_huge_pages() -> None:
    """Ask torch to lay large tensors on huge pages; has an effect before its first tensor only.

    The activations of a step are large, so they are mapped anew in every step, and the kernel
    clears each page again: with pages of 4 kB that is 40,000 page faults a step for the Digits CNN
    at batch 128, and an eighth of its time.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")


def has_bf16(device: "torch.device") -> bool:
    """Whether the device computes in bfloat16, rather than emulating it."""
    import torch  # here, so that the command can ask for huge pages before torch is imported

    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type == "cpu":
        return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
    return True
