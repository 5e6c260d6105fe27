"""Write the configuration and the model card of a Hugging Face Hub folder."""

import json
from collections.abc import Mapping
from typing import Any

from peerdg.models.classifier import Classifier
from peerdg.terminal import visible

_TIMM = """
## Load with timm

```python
import timm
net = timm.create_model("local-dir:FOLDER", pretrained=True).eval()  # uploaded: "hf-hub:USER/NAME"
transform = timm.data.create_transform(**timm.data.resolve_model_data_config(net))
```

peerdg resizes images to the `stored_size` in `config.json` first. If this is not `image_size`, do
the same before the transform to get the same probabilities.
"""


def hub_config(model: Classifier, about: Mapping[str, Any]) -> dict[str, Any]:
    """Extend the description of an exported model to a `config.json`, which timm reads.

    Its options for images make timm resize them to squares, as peerdg does.
    """
    classes = list(about["classes"])
    config = {**about, "num_classes": len(classes), "label_names": classes}
    if about["library"] != "timm":
        return config
    known: Any = model.encoder.pretrained_cfg
    size = about["image_size"]
    return {
        **config,
        "architecture": known["architecture"],
        "pretrained_cfg": {
            "input_size": [3, size, size],
            "fixed_input_size": known.get("fixed_input_size", False),
            "mean": about["mean"],
            "std": about["std"],
            "interpolation": "bilinear",
            "crop_pct": 1.0,
            "crop_mode": "squash",
            "first_conv": known.get("first_conv"),
            "classifier": known.get("classifier"),
        },
    }


def hub_card(card: str, about: Mapping[str, Any], description: Mapping[str, Any]) -> str:
    """Add metadata with accuracies to a model card, and code to load the folder with timm.

    Accuracies of an oracle are left out, because they do not measure generalization.
    """
    training = description.get("training") or {}
    lines = [
        "---",
        f"library_name: {about['library']}",
        "pipeline_tag: image-classification",
        "tags: [image-classification, domain-generalization, peerdg]",
    ]
    if training.get("accuracy") and not training.get("oracle"):
        name = f"{about['backbone']} {training['method']}"
        lines += ["model-index:", f"- name: {_quoted(name)}", "  results:"]
        for domain, result in training["accuracy"].items():
            data = _quoted(training["data"])
            dataset = f"{{type: {data}, name: {_quoted(domain)}}}"
            metric = f"{{type: accuracy, value: {result['accuracy'] / 100:.4f}}}"
            lines.append(
                f"  - {{task: {{type: image-classification}}, dataset: {dataset}, "
                f"metrics: [{metric}]}}"
            )
    return "\n".join([*lines, "---", card + (_TIMM if about["library"] == "timm" else "")])


def _quoted(text: str) -> str:
    """Quote a name for YAML. Every JSON string is valid YAML."""
    return json.dumps(visible(text), ensure_ascii=False)
