"""Where the command line writes: results to standard output, everything else to standard error."""

from peerdg.terminal import Terminal

console = Terminal(soft_wrap=False, highlight=False)
error_console = Terminal(stderr=True, highlight=False)


def say_problem(message: str, *, hint: str | None = None) -> None:
    """Print an error, then the hint."""
    error_console.print(f"Error: {message}", style="red", markup=False, soft_wrap=True)
    if hint:
        error_console.print(hint, markup=False, soft_wrap=True)
