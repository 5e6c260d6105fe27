"""Entry point: find the command, run it, and turn errors into messages and exit codes."""

import errno
import io
import os
import re
import sys
import traceback
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from pkgutil import resolve_name
from typing import NoReturn

from cyclopts import App, CycloptsError, Parameter, RepeatArgumentError, UnknownOptionError
from rich.text import Text

from peerdg import __version__
from peerdg.errors import ConfigError, PeerdgError, PeerdgWarning, Stopped, is_out_of_memory
from peerdg.run.hardware import keep_memory
from peerdg.terminal import console, error_console

# Commands and their summaries, so that listing commands does not import them.
COMMANDS = {
    "demo": "Train four methods on small digits, and compare them.",
    "train": "Train a method on one labeled domain.",
    "bench": "Train several methods with several seeds, and compare them.",
    "tune": "Search good options of a method by source images.",
    "resume": "Continue an interrupted run.",
    "evaluate": "Evaluate a trained model on other images, in detail.",
    "predict": "Predict the classes and probabilities of images.",
    "combine": "Combine several runs into one model by averaging weights or outputs.",
    "export": "Write a trained model as ONNX, torch.export or plain weights.",
    "runs": "List and compare run folders.",
    "report": "Write a page about runs: robustness, mistakes, curves.",
    "watch": "Show runs in a browser as they train.",
    "analyze otdd": "Compute the optimal transport dataset distance between domains.",
    "analyze cka": "Compare the features of networks, layer by layer.",
    "analyze connectivity": "Evaluate the networks on a line between two snapshots.",
    "analyze drift": "Measure how far a network moves from its start.",
    "paper list": "List the tables and figures of the PEER paper.",
    "paper show": "Show the published values of an item, and how to make it.",
    "paper run": "Make items of the paper, and write our values next to the published ones.",
    "paper claims": "Compare the paper's claims with the runs.",
    "methods": "List the methods and their options.",
    "config": "Print the complete configuration of a run.",
    "data list": "List the data sets.",
    "data show": "Write a contact sheet of a data set.",
    "data verify": "List the files of a data set that are missing or wrong.",
    "data prepare": "Unpack a data set's archives, or decode it into the cache.",
    "data cache": "Show or clear the cache of decoded images.",
}
GROUPS = {
    "analyze": "Compare data sets, networks and snapshots.",
    "data": "List, show, verify and prepare data sets.",
    "paper": "Make the tables and figures of the PEER paper.",
}
WITH_OPTIONS = (
    "train",
    "bench",
    "tune",
    "config",
    "paper run",
)  # commands that take the options of a run
WITH_PLUGIN = (*WITH_OPTIONS, "resume", "methods")
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # errors of a full or failing disk


def make_app(arguments: list[str]) -> App:
    """Create the app with all commands. Flags depend on the arguments (see `options_for`)."""
    app = App(
        name="peerdg",
        help="Single-source domain generalization: train on one domain, generalize to others.",
        help_epilogue="Start with `peerdg demo`. `--debug` shows an error's traceback.",
        help_format="markdown",
        version=__version__,
        result_action="return_value",
        console=console,
        suppress_keyboard_interrupt=False,  # `run` reports whether the state was saved
        default_parameter=Parameter(
            negative_bool=(),
            negative_iterable=(),
            negative_none=(),
            show_default=lambda default: str(default) if default else None,
        ),
    )
    groups = {name: App(name=name, help=text, help_epilogue="") for name, text in GROUPS.items()}
    for group in groups.values():
        app.command(group)
    for name, summary in COMMANDS.items():
        parent, _, command = name.rpartition(" ")
        function_name = f"{command}_{parent}" if parent else name
        target = f"peerdg.cli.{parent or name}:{function_name}"
        group = groups.get(parent, app)
        if name.split() != arguments[: len(name.split())]:
            group.command(target, name=command, help=summary)
            continue
        function, epilogue = resolve_name(target), ""
        if name in WITH_OPTIONS:
            from peerdg.cli.flags import options_for

            function.__annotations__["options"] = options_for(name, arguments[1:])
            epilogue = "`--help-all` lists the options of all methods, data sets and phases."
        group.command(function, name=command, help_epilogue=epilogue)
    return app


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line, and exit with one of the codes in `peerdg.errors`."""
    arguments = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # escape characters that it cannot encode
            stream.reconfigure(errors="backslashreplace")
    warnings.showwarning = _show_warning
    warnings.simplefilter("always", PeerdgWarning)
    keep_memory()
    # Of several processes that share a run, the first one talks. The others only report errors.
    console.quiet = error_console.quiet = os.environ.get("RANK", "0") != "0"
    sys.exit(run(arguments, debug=debug))


def run(arguments: list[str], *, debug: bool) -> int:
    """Run one command and return the exit code."""
    plugin = None
    try:
        with ExitStack() as stack:
            has_plugin = any(name in WITH_PLUGIN for name in arguments[:1])
            files = values_of(arguments, "--plugin") if has_plugin else []
            if len(files) > 1:
                raise ConfigError("--plugin is given twice. A command takes only one plugin.")
            for file in files:  # before parsing, because its method adds flags
                from peerdg.run.config import plugin_method

                plugin = stack.enter_context(plugin_method(Path(file)))
            _call(arguments)
        sys.stdout.flush()  # a full disk may only be noticed now
        return 0
    except Stopped as stopped:
        error_console.print(stopped.message)
        return stopped.exit_code
    except PeerdgError as error:
        if debug:
            _show_traceback()
        return _fail(error.exit_code, error.message, error.hint)
    except KeyboardInterrupt:
        return _fail(130, "Stopped immediately. The last saved state is intact.")
    except BrokenPipeError:
        console.on_broken_pipe()  # a reader such as head or less has quit: not an error
        return 0
    except Exception as error:
        # An error without a file name comes from standard output. Files raise `OutputError`.
        if isinstance(error, OSError) and error.errno in FULL and error.filename is None:
            console.on_broken_pipe()
            reason = f"Cannot write to standard output: {error.strerror}."
            return _fail(4, reason, "Free some space, or redirect the output elsewhere.")
        if is_out_of_memory(error) and not debug:
            hint = (
                "Use smaller or fewer images, in training --transform.size and --train.batch-size."
            )
            return _fail(1, "Out of memory.", hint)
        _show_traceback()
        if plugin is not None and plugin.failed_in(error):
            return _fail(1, f"The plugin {plugin.path} failed.", "See the traceback above.")
        return _fail(1, "This is a bug in peerdg.", "Please report it with the traceback above.")


def _fail(code: int, message: str, hint: str | None = None) -> int:
    error_console.quiet = False
    error_console.print(f"Error: {message}", style="red")
    if hint:
        error_console.print(hint)
    return code


def values_of(arguments: Sequence[str], *flags: str) -> list[str]:
    """Return the values of flags before the arguments are parsed."""
    pairs = [(*word.partition("=")[::2], after) for word, after in pairwise([*arguments, ""])]
    return [value or after for flag, value, after in pairs if flag in flags and (value or after)]


def _call(arguments: list[str]) -> None:
    """Parse the arguments and run their command."""
    # `--average X` is short for `--average.kind X`.
    arguments = [re.sub(r"^--average(?=$|=)", "--average.kind", each) for each in arguments]
    try:
        app = make_app(arguments)
        arguments = ["--help" if each == "--help-all" else each for each in arguments]
        app(arguments, exit_on_error=False, print_error=False)
    except UnknownOptionError as error:
        from peerdg.cli.flags import explain_unknown_option

        message, hint = explain_unknown_option(error)
        raise ConfigError(message, hint=hint) from error
    except CycloptsError as error:
        error.verbose = False
        hint = "See `peerdg --help`."
        if isinstance(error, RepeatArgumentError) or re.search(r'"[^" ]+,[^"]*"', str(error)):
            hint = "To try several values, use `peerdg bench --sweep OPTION=VALUE,VALUE`."
        raise ConfigError(str(error), hint=hint) from error


def _show_traceback() -> None:
    error_console.print(Text(traceback.format_exc()), end="", soft_wrap=True)


def _show_warning(
    message: Warning | str, category: type[Warning], *_: object, **__: object
) -> None:
    is_ours = issubclass(category, PeerdgWarning)
    text = f"{'Warning' if is_ours else category.__name__}: {message}"
    error_console.print(text, style="yellow" if is_ours else "dim")
