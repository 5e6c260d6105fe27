"""The model card: what a model is, where it comes from, what it is good for, how to load it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from peerdg.data import CRAFTED, VALIDATION
from peerdg.errors import DamagedError
from peerdg.evaluate.statistics import FEW, accuracy_text
from peerdg.files import replace_atomically
from peerdg.models.description import read_description
from peerdg.models.stored import DESCRIPTION, how_far
from peerdg.terminal import Table, markdown_text, visible

CARD = "MODEL_CARD.md"
_FEW = 50  # class names that are listed
_LOAD = ('model = peerdg.load_model("FOLDER")', 'print(model.predict("image.png"))')


def write_card(folder: Path) -> Path:
    """Write `MODEL_CARD.md` into a model folder that `models.stored.save_model` made."""
    description = read_description(folder / DESCRIPTION)
    with replace_atomically(folder / CARD) as temporary:
        temporary.write_text(model_card(description), "utf-8")
    return folder / CARD


def model_card(
    description: Mapping[str, Any],
    *,
    load: Sequence[str] = ("import peerdg", *_LOAD),
    remarks: Sequence[str] = (),
    normalises: bool = True,
) -> str:
    """The card as Markdown; every name that came from outside is escaped.

    Args:
        description: What `models.stored.load_stored` returns beside the network.
        load: Lines of Python that load the model.
        remarks: Sentences about the file the card lies beside, in Markdown.
        normalises: Whether what is loaded normalises its input itself.

    Raises:
        DamagedError: If the description is not one that peerdg wrote.
    """
    try:
        return _card(description, load, remarks, normalises)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamagedError(
            f"The training record of the model is damaged: {error!r}.",
            hint="Copy it again from its origin.",
        ) from error


def _card(
    description: Mapping[str, Any], load: Sequence[str], remarks: Sequence[str], normalises: bool
) -> str:
    training = description.get("training") or {}
    backbone = markdown_text(description["backbone"])
    parts = [
        f"# Model card: {backbone} for {len(description['classes'])} classes",
        "",
        _what_it_is(description, training, normalises),
        "",
        *(f"{text}\n" for text in remarks),
        "## Classes",
        "",
        _classes(description["classes"]),
        "",
        *_members(description.get("combined")),
        *_training(training, combined=_is_of_runs(description.get("combined"))),
        *_results(training, how_far(description)),
        "## Limits",
        "",
        *(f"- {text}" for text in _limits(training)),
        "",
        "## Use",
        "",
        "```python",
        *map(visible, load),  # one line each: a name with a line break would end the block
        "```",
        "",
        "## Licence",
        "",
        "Not stated. Fill in under which licence the model may be used; that of the images it "
        "learnt from, and of its initial weights, counts too.",
        "",
        f"Weights SHA-256: {markdown_text(description.get('weights_sha256', 'unknown'))}",
    ]
    return "\n".join(parts) + "\n"


def _what_it_is(
    description: Mapping[str, Any], training: Mapping[str, Any], normalises: bool
) -> str:
    size, stored = description["image_size"], description["stored_size"]
    constants = (
        f"mean {_numbers(description['mean'])} and standard deviation "
        f"{_numbers(description['std'])}"
    )
    pixels = markdown_text(f"{size} x {size} pixels")
    text = f"An image classifier. It sees RGB images of {pixels}. "
    if normalises:
        text += f"Normalisation is inside the model ({constants}); do not normalise its input."
    else:
        text += (
            f"Normalisation is not inside the model: give it (value / 255 - mean) / std, with "
            f"{constants}."
        )
    if stored != size:
        pixels = markdown_text(f"{stored} x {stored} pixels")
        text += f" Files are first decoded to {pixels}, as in training."
    if training.get("oracle"):
        text += (
            " **It is an oracle:** it, or a network that guided it, learnt from domains that it is "
            "judged on. Its accuracy on them says nothing about unseen domains, and no method may "
            "be compared with it."
        )
    elif training:
        source = markdown_text(training["source"])
        text += (
            f" It was trained on one domain ({source}) to hold up on domains that it has not seen."
        )
    made = [
        f"{name} {markdown_text(description[name])}"
        for name in ("peerdg", "torch")
        if name in description
    ]
    if far := how_far(description):
        text += f" Its run was not finished: it was {markdown_text(far)}."
    return text + (f" Made with {', '.join(made)}." if made else "")


def _classes(names: Sequence[str]) -> str:
    more = f", and {len(names) - _FEW} more" if len(names) > _FEW else ""
    return ", ".join(markdown_text(name) for name in names[:_FEW]) + more + "."


def _members(combined: Mapping[str, Any] | None) -> list[str]:
    """The runs that a combined model was made of, or how many networks one run trained for it."""
    if combined is None:
        return []
    if not _is_of_runs(combined):
        many, what = len(combined["members"]), combined.get("outputs")
        return ["## Members", "", f"The output is the mean of the {what} of {many} networks.", ""]
    how = {
        "uniform": "The weights are the mean of these runs' weights.",
        "greedy": "The weights are the mean of those of these runs that are used: each was added, "
        "in the order of accuracy on the source's validation images, unless that lowered it.",
        "ensemble": f"The output is the mean of these runs' {combined.get('outputs')}.",
    }
    rows = [
        [
            member["name"],
            str(member.get("method") or "unknown"),
            _seeds(member),
            "" if member.get("validation") is None else f"{member['validation']:.2f}",
            ("yes" if member.get("used", True) else "no")
            + (f", {member['progress']}" if member.get("progress") else ""),
        ]
        for member in combined["members"]
    ]
    header = ["run", "method", "seed", "validation %", "used"]
    return ["## Members", "", how[combined["rule"]], "", Table(header, rows).markdown()]


def _is_of_runs(combined: Mapping[str, Any] | None) -> bool:
    """Whether each member was a model of its own before."""
    return combined is not None and all(m.get("weights_sha256") for m in combined["members"])


def _seeds(member: Mapping[str, Any]) -> str:
    """Seed, and after a slash that of the main phase if it had one of its own."""
    seeds = [member.get("seed"), member.get("train_seed")]
    return "/".join(str(seed) for seed in seeds if seed is not None) or "unknown"


def _training(training: Mapping[str, Any], *, combined: bool = False) -> list[str]:
    if not training:
        return ["## Training", "", "Nothing is recorded about it.", ""]
    images = training["images"]
    facts = {
        "data": training["data"],
        "source domain": training["source"],
        "training images": f"{images['train']:,}",
        "validation images": f"{images.get(VALIDATION, 0):,}",
        "fingerprint of the training images": training["fingerprint"],
        "method": training["method"],
        **({"deployed": training["deployed"]} if "deployed" in training else {}),
        "initial weights": training["weights"],
        "budget": training["budget"],
        **({} if combined else {"seed": _seeds(training)}),
    }
    settings = {name: str(value) for name, value in training["settings"].items()}
    return [
        "## Training",
        "",
        Table(["", "value"], list(facts.items())).markdown(),
        "Settings of the method and the schedule:",
        "",
        Table(["setting", "value"], list(settings.items())).markdown(),
    ]


def _results(training: Mapping[str, Any], far: str | None) -> list[str]:
    """Accuracies with what each of them means."""
    when = "After the last epoch" if far is None else f"When it was {far}"
    measured = training.get("accuracy", {})
    if not measured:
        return ["## Accuracy", "", "None is recorded.", ""]
    rows = [
        [name, _accuracy(result), f"{result['n']:,}", _meaning(name, training)]
        for name, result in measured.items()
    ]
    parts = [
        "## Accuracy",
        "",
        f"{when} ({markdown_text(training['selection'])}). Accuracies on fewer than "
        f"{FEW} images have their 95 % interval (Wilson) beside them.",
        "",
        Table(["domain", "accuracy %", "images", "meaning"], rows).markdown(),
    ]
    calibration = training.get("calibration")
    if calibration:
        parts += [
            f"Expected calibration error on the {calibration['n']:,} validation images: "
            f"{100 * calibration['error']:.2f} % ({markdown_text(str(calibration['bins']))} bins). "
            "It is measured on the source domain; on others probabilities are usually too high.",
            "",
        ]
    return parts


def _accuracy(result: Mapping[str, Any]) -> str:
    return accuracy_text(result["accuracy"], result["n"], digits=2, with_n=False)


def _meaning(domain: str, training: Mapping[str, Any]) -> str:
    if domain == VALIDATION:
        return "images like those it learnt from, but unseen"
    if domain.startswith(CRAFTED):
        return "distorted copies of validation images: a guess at unseen domains"
    if training.get("oracle"):
        return "oracle: a domain that it, or a network that guided it, learnt from"
    return "a domain it never saw; never used to choose anything"


def _limits(training: Mapping[str, Any]) -> list[str]:
    notes = [
        "It always answers with one of its classes, also for an image that shows none of them.",
        "Probabilities are not calibrated for domains other than the source.",
    ]
    domains = training.get("accuracy", {})
    targets = [name for name in domains if name != VALIDATION and not name.startswith(CRAFTED)]
    if not targets:
        notes.append("It was not judged on any other domain: try it on your own images first.")
    else:
        notes.append("On domains other than those above it may be better or worse than on them.")
    if training.get("images", {}).get("train", 1000) < 1000:
        notes.append("It learnt from fewer than 1,000 images.")
    return notes


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.4g}" for value in values)
