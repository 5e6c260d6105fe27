"""Any model of timm as a backbone. The package is an extra and is imported here only."""

import importlib
from pathlib import Path
from typing import Any

from torch import nn

from peerdg.errors import ConfigError
from peerdg.models.download import reach
from peerdg.models.names import TIMM, Backbone, check_backbone
from peerdg.options import nearest

HUB = "https://huggingface.co"
FILE = "model.safetensors"


def build_timm(name: str) -> tuple[nn.Module, int, Backbone]:
    """The encoder called `timm:NAME`, the width of its features, and what it needs of an image."""
    timm = _timm(name)
    encoder = timm.create_model(name.removeprefix(TIMM), pretrained=False, num_classes=0)
    return encoder, getattr(encoder, "head_hidden_size", encoder.num_features), described(encoder)


def described(encoder: Any) -> Backbone:
    """Metadata of a timm model."""
    settings: dict[str, Any] = encoder.default_cfg
    last = settings.get("classifier") or ()
    return Backbone(
        title=f"{TIMM}{settings.get('architecture', type(encoder).__name__)}",
        image_size=settings["input_size"][-1],
        fixed_size=bool(settings.get("fixed_input_size")),
        normalisation=(tuple(settings["mean"]), tuple(settings["std"])),
        last_layer=(last,) if isinstance(last, str) else tuple(last),
        imagenet=None,
    )


def hub_file(name: str) -> Path:
    """The published weights of `timm:NAME`, in the Hugging Face cache or downloaded into it."""
    repository = _timm(name).get_pretrained_cfg(name.removeprefix(TIMM)).hf_hub_id
    if not repository:
        raise ConfigError(
            f"timm publishes no weights for {name}.",
            hint="Use --weights none, or give a file with --weights FILE.",
        )
    hub = importlib.import_module("huggingface_hub")
    cached = hub.try_to_load_from_cache(repository, FILE)
    if isinstance(cached, str):
        return Path(cached)
    url = f"{HUB}/{repository}/resolve/main/{FILE}"
    reach(url, place=f"give the file itself with --weights {FILE}").close()
    return Path(hub.hf_hub_download(repository, FILE))


def _timm(name: str) -> Any:
    check_backbone(name)
    importlib.import_module("peerdg._vision")  # timm imports torchvision, which needs this door
    timm = importlib.import_module("timm")
    model = name.removeprefix(TIMM)
    if not timm.is_model(model):
        guess = nearest(model, timm.list_models())
        hint = f"Did you mean '{TIMM}{guess}'?" if guess else "timm.list_models() has all names."
        raise ConfigError(f"timm has no model '{model}'.", hint=hint)
    return timm
