"""Start Python commands as a fork of the test process, which has loaded torch already.

Loading torch takes three seconds, more than most commands do. Package and tests are loaded again
in the fork. Isolated interpreters (`-I`) and those with other options are new ones, and so are all
with `make test-all`.
"""

import inspect
import io
import os
import runpy
import signal
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Mapping
from typing import Any

PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
# An interpreter reads these once, at its start.
AT_START = ("PYTHON", "LC_", "LANG", "TZ", "MALLOC_", "LD_")


class ForkedPopen(subprocess.Popen):
    """A `Popen` that forks for commands of this project, and starts any other as usual."""

    def _execute_child(self, *arguments: Any) -> None:
        call = inspect.signature(super()._execute_child).bind(*arguments).arguments
        if not _can_fork(call["args"], call["env"]):
            super()._execute_child(*arguments)
            return
        with warnings.catch_warnings():
            # Python warns of forks while other threads run. Those of pytest hold no locks of ours.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                code = _child(call)
            finally:
                os._exit(code)
        self._child_created = True
        self._close_pipe_fds(*(call[name] for name in PIPES))


def _can_fork(command: Any, env: Mapping[str, str] | None) -> bool:
    env = os.environ if env is None else env
    special = {key for key in {*env, *os.environ} if key.startswith(AT_START)} - {"PYTHONPATH"}
    return (
        not isinstance(command, str)
        and command[0] == sys.executable
        and next(word for word in command[1:3] if word != "-P") in ("-m", "-c")
        and all(env.get(key) == os.environ.get(key) for key in special)
    )


def _child(call: dict[str, Any]) -> int:
    if call["start_new_session"]:
        os.setsid()
    for number, name in enumerate(("p2cread", "c2pwrite", "errwrite")):
        if call[name] != -1:
            os.dup2(call[name], number)
    os.closerange(3, 4096)
    if call["env"] is not None:
        os.environ.clear()
        os.environ.update(call["env"])
    if call["cwd"] is not None:
        os.chdir(call["cwd"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.stdin, sys.stdout, sys.stderr = (
        io.TextIOWrapper(open(number, mode, closefd=False), line_buffering=number == 2)
        for number, mode in enumerate(("rb", "wb", "wb"))
    )
    sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr
    warnings.resetwarnings()
    words = list(map(os.fspath, call["args"][1:]))
    paths = call["env"].get("PYTHONPATH", "").split(os.pathsep) if call["env"] else []
    sys.path[:0] = [*([] if "-P" in words else [os.getcwd()]), *filter(None, paths)]
    how, what, *sys.argv[1:] = words[words[0] == "-P" :]
    for name in [n for n in sys.modules if n.partition(".")[0] in ("peerdg", "tests")]:
        del sys.modules[name]
    sys.meta_path[:] = [f for f in sys.meta_path if "jaxtyping" not in type(f).__module__]
    try:
        if how == "-m":
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        else:
            exec(what, {"__name__": "__main__"})
        code: Any = 0
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return int(code)
