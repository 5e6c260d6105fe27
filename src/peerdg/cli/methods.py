"""`peerdg methods`: what can be trained."""

from peerdg.cli.flags import Plugin
from peerdg.terminal import console


def methods(name: str | None = None, /, *, plugin: Plugin = None) -> None:
    """List the methods, or one method's options.

    Example: `peerdg methods peer`

    Args:
        name: A method, to see its options.
    """
    from dataclasses import fields

    from peerdg.methods.recipes import COMBINATIONS, RECIPES
    from peerdg.methods.registry import method_names, settings_of, summary_of
    from peerdg.terminal import Table

    if name is None:
        summaries = {method: summary_of(method) for method in method_names()}
        summaries |= {each: made.summary for each, made in (RECIPES | COMBINATIONS).items()}
        rows = [[method, summary] for method, summary in sorted(summaries.items())]
        console.print(Table(["method", "what it does"], rows, is_text=True))
        return
    if name in RECIPES:
        recipe = RECIPES[name]
        console.print(f"{name}: {recipe.summary}")
        console.print(f"Short for {recipe.flags}; options: peerdg methods {recipe.method}")
        return
    if name in COMBINATIONS:
        made = COMBINATIONS[name]
        console.print(f"{name}: {made.summary}")
        console.print(f"Made of {made.members} runs of {made.member} by peerdg bench.")
        return
    options = fields(settings_of(name))
    rows = [
        [f"--{name}.{f.name}".replace("_", "-"), str(f.default), f.metadata["help"]]
        for f in options
    ]
    console.print(f"{name}: {summary_of(name)}")
    if rows:
        console.print(Table(["option", "default", "meaning"], rows, is_text=True))
