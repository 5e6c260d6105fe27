"""Entry point: find the command, run it, turn errors into messages and exit codes."""

import errno
import io
import os
import re
import sys
import traceback
import warnings
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NoReturn

from cyclopts import App, CycloptsError, Parameter, UnknownOptionError
from rich.text import Text

from peerdg import __version__
from peerdg.errors import ConfigError, PeerdgError, PeerdgWarning, Stopped, is_out_of_memory
from peerdg.run.hardware import keep_memory
from peerdg.terminal import console, error_console

# Each command with a line of help and examples. It is imported only when it is used.
_COMMANDS = """
demo: Train ERM, RandAugment and PEER on small digits, and compare them.
  peerdg demo --seeds 1 --out runs/glance
train: Train a method on one labeled domain.
  peerdg train digits-mini --method peer --budget quick --out runs/first
  peerdg train photos/ --target sketches/ --epochs 20 --peer.k 5
  peerdg train --config runs/first/config.toml --seed 1 --out runs/second
bench: Train several methods with several seeds, and compare them.
  peerdg bench digits-mini --methods erm,randaugment,peer --budget quick --out runs/all
  peerdg bench photos/ --methods erm,peer --target sketches/ --jobs 2 --out runs/mine
resume: Continue an interrupted run.
  peerdg resume runs/first
evaluate: Measure a trained model on other images, in detail.
  peerdg evaluate runs/first
  peerdg evaluate runs/first sketches/ paintings/ --report looked-at
  peerdg evaluate runs/first sketches/ --map Dog=dog --map Cat=cat
predict: Predict class and probability of images.
  peerdg predict runs/first digit.png
  peerdg predict runs/first photos/ -o found.json --top 3
combine: Make one model of several runs: the mean of their weights or outputs.
  peerdg combine runs/a runs/b runs/c -o combined
export: Write a trained model as ONNX, torch.export or plain weights.
  peerdg export runs/first --format onnx -o model.onnx
runs: List and compare run folders.
  peerdg runs runs/demo --compare
methods: List the methods and their options.
  peerdg methods peer
config: Print the complete configuration of a run.
  peerdg config digits --method peer --budget paper > peer.toml
data: List, show, verify and prepare data sets.
  peerdg data list
data list: List the data sets.
  peerdg data list
data show: Write a contact sheet of a data set.
  peerdg data show digits-mini -o sheet.png
data verify: List the files of a data set that are missing or wrong.
  peerdg data verify digits --root ~/data/digits
  peerdg data verify photos/ sketches/
data prepare: Unpack a data set's archives, or decode it into the cache.
  peerdg data prepare pacs ~/Downloads/PACS.zip --root ~/data/PACS
data cache: Show or clear the cache of decoded images.
  peerdg data cache --clear"""
COMMANDS = {
    name: (summary, examples.strip().split("\n  "))
    for name, summary, examples in re.findall(r"^(\S.*?): (.+)((?:\n  .+)+)", _COMMANDS, re.M)
}
WITH_OPTIONS = ("train", "bench", "config")  # commands with the options of a run
WITH_PLUGIN = (*WITH_OPTIONS, "resume", "methods")
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # errors of a disk


def make_app(arguments: list[str]) -> App:
    """Make the app with all commands. Flags of options depend on the arguments (`options_for`)."""
    app = App(
        name="peerdg",
        help="Single-source domain generalization: train on one domain, hold up on unseen ones.",
        help_epilogue=_examples(["peerdg demo"]) + "\n\n`--debug` shows an error's traceback.",
        help_format="markdown",
        version=__version__,
        result_action="return_value",
        console=console,
        suppress_keyboard_interrupt=False,  # `run` reports whether the state was saved
        default_parameter=Parameter(
            negative_bool=(), negative_iterable=(), negative_none=(), show_default=_show
        ),
    )
    groups = {"": app}
    for name, (summary, examples) in COMMANDS.items():
        parent, _, command = name.rpartition(" ")
        epilogue = _examples(examples)
        if command == "data":
            groups["data"] = App(name="data", help=summary, help_epilogue=epilogue)
            app.command(groups["data"])
            continue
        target = f"peerdg.cli.data:{command}_data" if parent else f"peerdg.cli.{name}:{name}"
        is_called = arguments[: len(name.split())] == name.split()
        if name in WITH_OPTIONS and is_called:
            from peerdg.cli.flags import options_for

            function = resolve_name(target)
            function.__annotations__["options"] = options_for(name, arguments[1:])
            epilogue += "\n\n`--help-all` lists the options of all methods, data sets and phases."
        help = None if is_called else summary  # its own help is the docstring
        groups[parent].command(target, name=command, help=help, help_epilogue=epilogue)
    return app


def _show(default: Any) -> Any:
    """Show a default value, unless it is None, False or empty."""
    return str(default) if default else None


def _examples(lines: list[str]) -> str:
    return "**Examples**\n\n" + "  \n".join(f"`{line}`" for line in lines)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit with the code of `peerdg.errors`."""
    arguments = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # write out what its encoding lacks
            stream.reconfigure(errors="backslashreplace")
    warnings.showwarning = _show_warning
    warnings.simplefilter("always", PeerdgWarning)
    keep_memory()
    sys.exit(run(arguments, debug=debug))


def run(arguments: list[str], *, debug: bool) -> int:
    """Run one command and return the exit code."""
    plugin = None
    try:
        with ExitStack() as stack:
            if file := _plugin_file(arguments):
                from peerdg.run.config import plugin_method

                plugin = stack.enter_context(plugin_method(file))
            _call(arguments)
        sys.stdout.flush()  # a full disk may show only now
        return 0
    except Stopped as stopped:
        error_console.print(stopped.message)
        return stopped.exit_code
    except PeerdgError as error:
        if debug:
            _show_traceback()
        return _fail(error.exit_code, error.message, error.hint)
    except KeyboardInterrupt:
        return _fail(130, "Stopped at once. The last saved state is intact.")
    except BrokenPipeError:
        _silence_output()  # the reader (head, less) has left, which is not an error
        return 0
    except Exception as error:
        # Only standard output has no name. Files of peerdg raise `OutputError`.
        if isinstance(error, OSError) and error.errno in FULL and error.filename is None:
            _silence_output()
            reason = f"Cannot write to standard output: {error.strerror}."
            return _fail(4, reason, "Free some space, or send the output elsewhere.")
        if is_out_of_memory(error) and not debug:
            return _fail(
                1,
                "There is not enough memory for this.",
                "Use smaller images (--transform.size) or fewer at a time (--train.batch-size). "
                "The last saved state of a run is intact.",
            )
        _show_traceback()
        if plugin is not None and plugin.failed_in(error):
            return _fail(1, f"The plugin {plugin.path} failed.", "The text above says where.")
        return _fail(1, "This is a bug in peerdg.", "Please report it with the text above.")


def _fail(code: int, message: str, hint: str | None = None) -> int:
    error_console.print(f"Error: {message}", style="red")
    if hint:
        error_console.print(hint)
    return code


def _plugin_file(arguments: list[str]) -> Path | None:
    """Find the file after `--plugin`. Its method has flags, so it is loaded before parsing."""
    for argument, following in pairwise([*arguments, ""]):
        flag, _, value = argument.partition("=")
        if flag == "--plugin" and (value or following) and arguments[0] in WITH_PLUGIN:
            return Path(value or following)
    return None


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
        raise ConfigError(str(error), hint="See `peerdg --help`.") from error


def _silence_output() -> None:
    """Discard what the interpreter writes when it ends. That must not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show_traceback() -> None:
    error_console.print(Text(traceback.format_exc()), end="", soft_wrap=True)


def _show_warning(
    message: Warning | str, category: type[Warning], *_: object, **__: object
) -> None:
    is_ours = issubclass(category, PeerdgWarning)
    text = f"{'Warning' if is_ours else category.__name__}: {message}"
    error_console.print(text, style="yellow" if is_ours else "dim")
