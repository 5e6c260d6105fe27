"""`peerdg methods`: what can be trained."""

from peerdg.cli.console import console


def methods(name: str | None = None, /) -> None:
    """List the methods, or one method's options.

    Args:
        name: A method, to see its options.
    """
    from dataclasses import fields

    from peerdg.methods.registry import method_names, settings_of, summary_of
    from peerdg.report.tables import plain_table

    if name is None:
        rows = [[method, summary_of(method)] for method in method_names()]
        console.print(plain_table(["method", "what it does"], rows))
        return
    options = fields(settings_of(name))
    rows = [
        [f"--{name}.{f.name}".replace("_", "-"), str(f.default), f.metadata["help"]]
        for f in options
    ]
    console.print(f"{name}: {summary_of(name)}", markup=False)
    if rows:
        console.print(plain_table(["option", "default", "meaning"], rows))
