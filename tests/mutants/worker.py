"""Runs pytest again and again, each time in a fork of a process that has loaded the libraries.

Loading them takes several times as long as the tests that notice a mutant. Neither the package nor
its tests are loaded before the fork, so each fork sees the files as they are then.

Reads one request per line, `{"pytest": [argument, ...]}` or `{"import": module}`, and answers each
with the exit code, or `null` if it took too long:

    python -P worker.py SECONDS
"""

import contextlib
import importlib
import json
import os
import signal
import sys
import time
from typing import Any

LIBRARIES = (
    "numpy", "torch", "torch.optim.swa_utils", "torch.utils.data", "safetensors.torch",
    "PIL.Image", "rich.progress", "hypothesis.strategies", "beartype", "jaxtyping", "pytest",
)  # fmt: skip
# pytest warns, and here fails, if a plugin was loaded before it could rewrite its assertions.
LOADED_ALREADY = "ignore:Module already imported"
FAILED = 1


def serve(seconds: float) -> None:
    for name in LIBRARIES:
        with contextlib.suppress(ImportError):  # then the tests do not need it, or say so
            importlib.import_module(name)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line), seconds)), flush=True)


def _answer(request: dict[str, Any], seconds: float) -> int | None:
    process = os.fork()
    if process == 0:
        code = FAILED
        try:
            code = _work(request)
        finally:
            os._exit(code)
    code = None
    try:
        code = _exit_code(process, time.monotonic() + seconds)
    finally:
        if code is None:  # too long, or this process is to end: also what the tests have started
            os.killpg(process, signal.SIGKILL)
            os.waitpid(process, 0)
    return code


def _exit_code(process: int, limit: float) -> int | None:
    while time.monotonic() < limit:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    return None


def _work(request: dict[str, Any]) -> int:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    silence = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(silence, stream)
    sys.path.insert(0, os.getcwd())  # as `python -m pytest` does
    if "import" in request:
        importlib.import_module(request["import"])
        return 0
    import pytest

    return int(pytest.main(["-W", LOADED_ALREADY, *request["pytest"]]))


if __name__ == "__main__":
    serve(float(sys.argv[1]))
