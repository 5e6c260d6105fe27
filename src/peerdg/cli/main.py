"""Entry point: find the command, run it, turn errors into messages and exit codes."""

import errno
import io
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeGuard

from cyclopts import App, CycloptsError, UnknownOptionError
from rich.text import Text

from peerdg.cli.help import HelpFormatter
from peerdg.errors import ConfigError, PeerdgError, PeerdgWarning, Stopped, is_out_of_memory
from peerdg.run.hardware import keep_memory
from peerdg.terminal import console, error_console
from peerdg.version import __version__

if TYPE_CHECKING:
    from peerdg.methods.registry import Plugin

# Each command: where it lives, what it does in a line, and how it is used.
COMMANDS = {
    "demo": (
        "Train ERM, RandAugment and PEER on small digits, and compare them.",
        ("peerdg demo", "peerdg demo --seeds 1 --out runs/glance"),
    ),
    "train": (
        "Train a method on one labelled domain.",
        (
            "peerdg train digits-mini --method peer --budget quick --out runs/first",
            "peerdg train digits --root ~/data/digits --target usps --target mnist-m --peer.k 5",
            "peerdg train --config runs/first/config.toml --seed 1 --out runs/second",
            "peerdg train digits-mini --plugin my_method.py --my-method.weight 2",
            "peerdg config digits --budget quick   # values in brackets above are only defaults",
        ),
    ),
    "bench": (
        "Train several methods with several seeds, and compare them.",
        (
            "peerdg bench digits-mini --methods erm,randaugment,peer --budget quick --out runs/all",
            "peerdg bench photos/ --methods erm,peer --target sketches/ --jobs 2 --out runs/mine",
            "peerdg bench digits-mini --methods erm,peer --out runs/plan --dry-run",
        ),
    ),
    "resume": (
        "Go on with an interrupted run.",
        ("peerdg resume runs/first", "peerdg resume runs/mine --plugin my_method.py"),
    ),
    "evaluate": (
        "How good a trained model is on other images, in detail.",
        (
            "peerdg evaluate runs/first",
            "peerdg evaluate runs/first sketches/ paintings/ --report looked-at",
            "peerdg evaluate runs/first sketches/ --map Dog=dog --map Cat=cat",
            "peerdg evaluate runs/first digits --root ~/data/digits",
        ),
    ),
    "predict": (
        "Class and probability of images.",
        (
            "peerdg predict runs/first digit.png",
            "peerdg predict runs/first photos/ -o found.csv",
            "peerdg predict runs/first photos/ -o found.json --top 3",
        ),
    ),
    "combine": (
        "Make one model of several runs: the mean of their weights or outputs.",
        (
            "peerdg combine runs/a runs/b runs/c -o combined",
            "peerdg combine runs/a runs/b --rule greedy -o combined",
            "peerdg combine runs/a runs/b --rule ensemble -o combined",
        ),
    ),
    "export": (
        "Write a trained model as ONNX, torch.export or plain weights.",
        (
            "peerdg export runs/first --format onnx -o model.onnx",
            "peerdg export runs/first --format safetensors -o first-weights/",
        ),
    ),
    "runs": (
        "List and compare run folders.",
        (
            "peerdg runs",
            "peerdg runs runs/demo --compare",
            "peerdg runs results/demo/runs.json --report /tmp/again",
        ),
    ),
    "methods": ("List the methods and their options.", ("peerdg methods", "peerdg methods peer")),
    "config": (
        "Print the complete configuration of a run.",
        (
            "peerdg config digits --method peer --budget paper > peer.toml",
            "peerdg config digits --explain",
        ),
    ),
}
DATA_COMMANDS = {
    "list": ("List the data sets.", ("peerdg data list",)),
    "show": (
        "Write a contact sheet of a data set.",
        ("peerdg data show digits-mini -o sheet.png",),
    ),
    "verify": (
        "Say what of a data set is there, and what is missing or wrong.",
        (
            "peerdg data verify digits --root ~/data/digits",
            "peerdg data verify photos/ sketches/",
        ),
    ),
    "prepare": (
        "Unpack a data set's archives, or decode it into the cache.",
        (
            "peerdg data prepare pacs ~/Downloads/PACS.zip --root ~/data/PACS",
            "peerdg data prepare digits --root ~/data/digits",
        ),
    ),
    "cache": (
        "Show or clear the cache of decoded images.",
        ("peerdg data cache", "peerdg data cache --clear"),
    ),
}


# Those that take --plugin; the value says whether the flags of its method are theirs.
WITH_PLUGIN = {"train": True, "config": True, "bench": True, "resume": False, "methods": False}


def make_app(*, plugin_flags: bool = False) -> App:
    """All commands, each imported only when it is used.

    Args:
        plugin_flags: Whether a plugin was loaded, whose options become flags.
    """
    app = App(
        name="peerdg",
        help="Single-source domain generalization: train on one domain, hold up on unseen ones.",
        help_epilogue=_examples(("peerdg demo",)) + "\n\n`--debug` shows an error's traceback.",
        help_format="markdown",
        version=__version__,
        result_action="return_value",
        console=console,
        help_formatter=HelpFormatter(),
        suppress_keyboard_interrupt=False,  # run() reports whether the state was saved
    )
    for name, (summary, lines) in COMMANDS.items():
        path = f"peerdg.cli.{name}:{name}"
        command = _with_plugin_flags(name) if plugin_flags and WITH_PLUGIN.get(name) else path
        app.command(command, name=name, help=summary, help_epilogue=_examples(lines))
    data = App(
        name="data",
        help="List, show, verify and prepare data sets.",
        help_epilogue=_examples(("peerdg data list",)),
    )
    for name, (summary, lines) in DATA_COMMANDS.items():
        module = name if name in ("prepare", "cache") else "data"
        path = f"peerdg.cli.{module}:{name}_data"
        data.command(path, name=name, help=summary, help_epilogue=_examples(lines))
    app.command(data)
    return app


def _with_plugin_flags(name: str) -> Callable[..., None]:
    from peerdg.cli.flags import with_method_flags

    return with_method_flags(getattr(import_module(f"peerdg.cli.{name}"), name))


def _examples(lines: tuple[str, ...]) -> str:
    """The end of a help page."""
    return "**Examples**\n\n" + "\n\n".join(f"`{line}`" for line in lines)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit with the code of `peerdg.errors`."""
    arguments = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what its encoding lacks is written out
            stream.reconfigure(errors="backslashreplace")
    warnings.showwarning = _show_warning
    warnings.simplefilter("always", PeerdgWarning)
    keep_memory()
    sys.exit(run(arguments, debug=debug))


def _written_out(arguments: list[str]) -> list[str]:
    """`--average X` is `--average.kind X`: the section's first option may stand for it."""
    return [re.sub(r"^--average(?=$|=)", "--average.kind", argument) for argument in arguments]


def run(arguments: list[str], *, debug: bool) -> int:
    """Run one command; return the exit code."""
    if any("\0" in argument for argument in arguments):
        say_problem("An argument has a NUL character, which no path or name may have.")
        return 2
    plugin = None
    try:
        with ExitStack() as stack:
            if file := _plugin_file(arguments):
                from peerdg.run.plugin import plugin_method

                plugin = stack.enter_context(plugin_method(file))
            _call(arguments, plugin)
        sys.stdout.flush()  # a full disk may show only now
        return 0
    except Stopped as stopped:
        error_console.print(stopped.message, markup=False, soft_wrap=True)
        return stopped.exit_code
    except PeerdgError as error:
        if debug:
            _show_traceback()
        say_problem(error.message, hint=error.hint)
        return error.exit_code
    except KeyboardInterrupt:
        say_problem("Stopped at once; the last saved state is intact.")
        return 130
    except BrokenPipeError:
        # The reader (head, less) has left; what it did not read is not an error.
        _silence_output()
        return 0
    except Exception as error:
        return _explain_unexpected(error, plugin, debug=debug)


def _explain_unexpected(error: Exception, plugin: "Plugin | None", *, debug: bool) -> int:
    """Say what an error that is not peerdg's own means; return the exit code."""
    if is_out_of_memory(error):
        if debug:
            _show_traceback()
        say_problem(
            "There is not enough memory for this.",
            hint="Close other programs, or use smaller images (--transform.size) or fewer at a "
            "time (--train.batch-size); the last saved state of a run is intact.",
        )
        return 1
    if _is_full_output(error):
        _silence_output()
        reason = f"Cannot write to standard output: {error.strerror}."
        say_problem(reason, hint="Free some space, or send the output elsewhere.")
        return 4
    _show_traceback()
    if plugin is not None and plugin.failed_in(error):
        say_problem(f"The plugin {plugin.path} failed.", hint="The text above says where.")
    else:
        say_problem("This is a bug in peerdg.", hint="Please report it with the text above.")
    return 1


def _plugin_file(arguments: list[str]) -> Path | None:
    """The file after `--plugin`: its method has flags, so it is loaded before they are parsed."""
    if not arguments or arguments[0] not in WITH_PLUGIN:
        return None
    found = [
        argument.partition("=")[2] if "=" in argument else following
        for argument, following in zip(arguments, [*arguments[1:], ""], strict=True)
        if argument.partition("=")[0] == "--plugin"
    ]
    if len(found) > 1:
        raise ConfigError("--plugin is given twice; a run has one method.")
    return Path(found[0]) if found and found[0] else None


def _call(arguments: list[str], plugin: "Plugin | None") -> None:
    """Parse the arguments and run their command.

    Raises:
        ConfigError: If they cannot be parsed.
    """
    try:
        app = make_app(plugin_flags=plugin is not None)
        app(_written_out(arguments), exit_on_error=False, print_error=False)
    except CycloptsError as error:
        message, hint = _explain(error)
        raise ConfigError(message, hint=hint or "See `peerdg --help`.") from error


def _is_full_output(error: Exception) -> TypeGuard[OSError]:
    """Whether standard output took no more; files that peerdg writes itself raise `OutputError`."""
    full = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
    return isinstance(error, OSError) and error.errno in full and error.filename is None


def _silence_output() -> None:
    """The interpreter writes what is left when it ends; that must not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show_traceback() -> None:
    """As Python does; a name in it is made visible like anywhere else."""
    error_console.print(Text(traceback.format_exc()), end="", soft_wrap=True)


def _explain(error: CycloptsError) -> tuple[str, str | None]:
    """A usage error in our words: a message, and the nearest option if one was misspelt."""
    if isinstance(error, UnknownOptionError):
        from peerdg.cli.flags import explain_unknown_option

        return explain_unknown_option(error)
    error.verbose = False
    return str(error), None


def _show_warning(
    message: Warning | str, category: type[Warning], *_: object, **__: object
) -> None:
    if issubclass(category, PeerdgWarning):
        text, style = f"Warning: {message}", "yellow"
    else:
        text, style = f"{category.__name__}: {message}", "dim"
    error_console.print(text, style=style, markup=False, soft_wrap=True)


def say_problem(message: str, *, hint: str | None = None) -> None:
    """Print an error, then the hint."""
    error_console.print(f"Error: {message}", style="red")
    if hint:
        error_console.print(hint)
