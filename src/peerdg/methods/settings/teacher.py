"""Options of the teacher (T+RA) of the PEER paper, with a switch for every ambiguity."""

from dataclasses import dataclass
from typing import Literal

from peerdg.errors import ConfigError
from peerdg.methods.alignment_settings import FrozenGuideSettings
from peerdg.options import option

IMPLEMENTED_BY = "peerdg.methods.teacher:Teacher"
TITLE = "T+RA"
ALIASES = {"weight": "w", "lambda": "lam", "period": "k", "temperature": "tau", "folder": "model"}
TINY = {"k": 2}


@dataclass(frozen=True, kw_only=True)
class Settings(FrozenGuideSettings):
    """A student learns augmented images, guided by a frozen teacher (T+RA)."""

    model: str | None = option(
        None,
        "the teacher: run or model folder, or a network with published weights, e.g. "
        "regnet_y_16gf; default: what the main phase starts from",
        names_model=True,
    )
    adapter: Literal["fitted", "trained"] = option(
        "fitted",
        "map from the teacher's features to the student's width, if they differ: fitted to the "
        "source's classes and frozen, or trained with the student",
    )
    adapter_epochs: int = option(20, "passes over the source that fit the adapter", at_least=1)
    adapter_lr: float = option(1e-3, "learning rate of the adapter's fit", above=0, at_most=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.adapter == "trained" and not self.head_grad_target:
            raise ConfigError(
                "teacher.adapter 'trained' learns through R's branch of the teacher, which "
                "teacher.head_grad_target = false cuts off.",
                hint="Leave one of them out.",
            )

    @property
    def is_oracle(self) -> bool:
        """With a teacher from elsewhere."""
        return self.model is not None
