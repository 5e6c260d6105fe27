"""Trained models that a method takes as input, such as a teacher: their fingerprints, loading."""

import warnings
from pathlib import Path
from typing import Any

from peerdg.errors import DataError, PeerdgWarning
from peerdg.files import sha256
from peerdg.methods.registry import model_options_of
from peerdg.models.backbones import build_classifier
from peerdg.models.classifier import Classifier
from peerdg.models.description import read_description
from peerdg.models.names import BACKBONES, TIMM
from peerdg.models.stored import DESCRIPTION, how_far, load_stored, model_folder
from peerdg.models.weights import initialise, weights_file
from peerdg.run.config import RunConfig

PUBLISHED = "imagenet"  # the weights of a network that is given by its name


def input_models(config: RunConfig) -> dict[str, str]:
    """List the options that name a trained model: {"miro.oracle": "runs/first"}."""
    settings, names = config.method_settings, model_options_of(config.method)
    values = {f"{config.method}.{name}": getattr(settings, name) for name in names}
    return {option: value for option, value in values.items() if value is not None}


def input_models_record(config: RunConfig) -> dict[str, Any]:
    """Describe the input models for the manifest; see `Inputs`.

    Raises:
        PeerdgError: If one of them cannot be had.
    """
    models, is_oracle = {}, bool(config.oracle)
    for option, value in input_models(config).items():
        if _is_published(value):
            file = weights_file(value, PUBLISHED)
            assert file is not None  # noqa: S101  (None is for no weights)
            models[option] = sha256(file)
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


def load_input_model(value: str) -> Classifier:
    """Load the model of a run or model folder, or a network with its published weights.

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
