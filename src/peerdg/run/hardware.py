"""The machine: memory, the device, and whether it computes in bfloat16."""

import contextlib
import ctypes
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from peerdg.errors import ConfigError

if TYPE_CHECKING:
    import torch

DEVICES = "auto, cpu, cuda, cuda:1, mps"  # for help texts

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # from malloc.h


def keep_memory() -> None:
    """Have glibc keep freed memory for the next step, unless the environment sets it up.

    Else glibc maps the large activations anew in every step, and the kernel clears each page again:
    up to a third of the time of a SqueezeNet at 224 px.
    """
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):  # not Linux, or musl
        return
    mallopt(_M_MMAP_MAX, 0)
    mallopt(_M_TRIM_THRESHOLD, -1)  # no limit


def peak_memory() -> int | None:
    """Return the most bytes of memory that this process has had. None where that is not known.

    Not from `getrusage`, which counts the process that started this one until it became this one.
    """
    with contextlib.suppress(OSError):
        status = Path("/proc/self/status").read_text("ascii", "replace")
        if peak := re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE):
            return 1024 * int(peak[1])
    return None


def find_device(name: str) -> "torch.device":
    """Return a device that works here. `"auto"` is the accelerator if there is one, or the CPU."""
    import torch  # here, so that the command starts without it

    try:
        if name == "auto":
            device = torch.accelerator.current_accelerator() or torch.device("cpu")
        else:
            device = torch.device(name)
        torch.zeros(1, device=device).cpu()
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"The device '{name}' cannot be used: {str(error).splitlines()[0]}",
            hint="Use --device cpu, or leave it out.",
        ) from error
    return device


def has_bf16(device: "torch.device") -> bool:
    """Whether the device computes in bfloat16, rather than emulating it."""
    import torch  # here, so that the command starts without it

    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type == "cpu":
        return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
    return True
