"""Find the memory, devices and bfloat16 support of the machine."""

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
    """Make glibc keep freed memory for the next step, unless the environment configures malloc.

    By default glibc maps large activations again in every step, and the kernel clears each page.
    That takes up to a third of the training time of a SqueezeNet at 224 px.
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
    """Return the peak memory of this process in bytes, or None if it is unknown.

    `getrusage` is not used because its value includes the parent process before `exec`.
    """
    with contextlib.suppress(OSError):
        status = Path("/proc/self/status").read_text("ascii", "replace")
        if peak := re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE):
            return 1024 * int(peak[1])
    return None


def find_device(name: str) -> "torch.device":
    """Return a tested device. `"auto"` selects the accelerator, or the CPU if there is none."""
    import torch  # imported here, so that commands start fast

    try:
        if name == "auto":
            device = torch.accelerator.current_accelerator() or torch.device("cpu")
        else:
            device = torch.device(name)
        if device.type == "cuda" and "LOCAL_RANK" in os.environ:  # one device per process
            device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.zeros(1, device=device).cpu()
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"The device '{name}' cannot be used: {str(error).splitlines()[0]}",
            hint="Use --device cpu, or remove --device.",
        ) from error
    return device


def has_bf16(device: "torch.device") -> bool:
    """Whether the device supports bfloat16 natively."""
    import torch  # imported here, so that commands start fast

    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type == "cpu":
        return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
    return True
