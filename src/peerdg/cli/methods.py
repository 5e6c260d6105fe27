"""`peerdg methods`: list the methods."""

from peerdg.cli.flags import Plugin
from peerdg.terminal import console


def methods(name: str | None = None, /, *, plugin: Plugin = None) -> None:
    """List the methods, or one method's options.

    Example: `peerdg methods peer`

    Args:
        name: Method whose options to list.
    """
    from dataclasses import fields
    from typing import Literal, get_args, get_origin, get_type_hints

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
        console.print(f"Combined from {made.members} runs of {made.member} by peerdg bench.")
        return
    rows, hints = [], get_type_hints(settings_of(name))
    for f in fields(settings_of(name)):
        kinds = (hints[f.name], *get_args(hints[f.name]))  # unpacks `Literal[...] | None`
        names = [str(name) for k in kinds if get_origin(k) is Literal for name in get_args(k)]
        choices = f" ({', '.join(names)})" if names else ""
        flag = f"--{name}.{f.name}".replace("_", "-")
        rows.append([flag, str(f.default), f.metadata["help"] + choices])
    console.print(f"{name}: {summary_of(name)}")
    if rows:
        console.print(Table(["option", "default", "meaning"], rows, is_text=True))
        console.print(f"Presets change defaults: peerdg config DATA --method {name} --explain")
