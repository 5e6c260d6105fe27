"""The base of methods that make images and add them to the training pool."""

from typing import ClassVar, Generic, Self, TypeVar, cast

from peerdg.methods.base import Method, RunContext
from peerdg.methods.metadata import MethodSettings
from peerdg.methods.pool import TrainingPool
from peerdg.methods.work import Chunks, Work
from peerdg.models.classifier import Classifier

S = TypeVar("S", bound=MethodSettings)


class PoolMethod(Method, Generic[S]):
    """Train one network F; make images for its training pool in `end_epoch`.

    Args:
        model: F.
        settings: Every switch of the method; by default `default_settings()`.
        pool: The training images; the caller adds and drops what `end_epoch` returns
            (`TrainingPool.change`).
        chunks: Divides the work of `end_epoch`, see `RunContext.chunks`.
    """

    default_settings: ClassVar[type[MethodSettings]]

    def __init__(
        self,
        model: Classifier,
        settings: S | None = None,
        *,
        pool: TrainingPool,
        chunks: Chunks | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.settings = settings or cast(S, self.default_settings())
        self.pool = pool
        self.chunks = chunks or Work().chunks

    @classmethod
    def build(cls, model: Classifier, settings: S, context: RunContext) -> Self:
        """Build the method with the run's training pool."""
        return cls(model, settings, pool=context.pool, chunks=context.chunks)

    @property
    def networks(self) -> dict[str, Classifier]:
        """The trained network."""
        return {"model": self.model}
