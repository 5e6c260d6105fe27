"""Trained networks that a method is given: which ones options name, their fingerprints, loading."""

import warnings
from pathlib import Path
from typing import Any

from peerdg.errors import ConfigError, DataError, PeerdgWarning
from peerdg.files import sha256
from peerdg.methods.registry import model_options_of
from peerdg.models.backbones import build_classifier
from peerdg.models.classifier import Classifier
from peerdg.models.description import read_description
from peerdg.models.names import BACKBONES, TIMM
from peerdg.models.pretrained import initialise, weights_file
from peerdg.models.stored import DESCRIPTION, how_far, load_stored, model_folder
from peerdg.run.folder import RunFolder
from peerdg.run.settings import RunConfig
from peerdg.run.started import read_started
from peerdg.text import visible

PUBLISHED = "imagenet"  # the weights of a network that is given by its name


def given_models(config: RunConfig) -> dict[str, str]:
    """For each option that names a trained network, {"miro.oracle": "runs/first"}."""
    settings, names = config.method_settings, model_options_of(config.method)
    values = {f"{config.method}.{name}": getattr(settings, name) for name in names}
    return {option: value for option, value in values.items() if value is not None}


def given_record(config: RunConfig) -> dict[str, Any]:
    """What the manifest keeps of the networks that the run is given; see `Inputs`.

    Raises:
        PeerdgError: If one of them cannot be had.
    """
    models, is_oracle = {}, bool(config.oracle)
    for option, value in given_models(config).items():
        if _is_published(value):
            file = weights_file(value, PUBLISHED)
            assert file is not None  # noqa: S101  (None is for no weights)
            models[option] = sha256(file, follow_links=True)
        else:
            folder = model_folder(Path(value))
            if not (folder / DESCRIPTION).exists():
                raise DataError(
                    f"There is no model in {value}, which --{option.replace('_', '-')} names.",
                    hint="Give a run folder, a model folder, or a network with published weights: "
                    f"{', '.join(BACKBONES)}.",
                )
            about = read_description(folder / DESCRIPTION)
            models[option] = about["weights_sha256"]
            is_oracle |= bool(about["training"].get("oracle"))
    return {**({"models": models} if models else {}), **({"oracle": True} if is_oracle else {})}


def require_same_models(run: RunFolder, now: dict[str, str]) -> None:
    """Refuse to go on with a run that was given other networks than those that are there now.

    Raises:
        ConfigError: If one of them has changed since.
    """
    started = read_started(run.manifest_file)
    for option, before in ({} if started is None else started.models).items():
        if (digest := now.get(option, before)) != before:
            raise ConfigError(
                f"The network that {visible(option)} names has other weights than when {run.path} "
                f"was started (SHA-256 {visible(before[:12])}..., now {digest[:12]}...).",
                hint="Restore it, or start anew: peerdg train --config "
                f"{run.config_file} --out {run.path} --overwrite",
            )


def load_given(value: str) -> Classifier:
    """The model of a run or model folder, or a network with its published weights.

    Warns if it comes from an unfinished run. The head of a published network is not trained.
    """
    if _is_published(value):
        network = build_classifier(value, classes=("0", "1"))
        initialise(network, value, PUBLISHED)
        return network.eval()
    network, description = load_stored(model_folder(Path(value)))
    if far := how_far(description):
        warnings.warn(f"The model in {value} was {far}.", PeerdgWarning, stacklevel=2)
    return network


def _is_published(value: str) -> bool:
    """Whether it is the name of a network; a folder of that name comes first."""
    return not Path(value).exists() and (value in BACKBONES or value.startswith(TIMM))
