"""Train PEER with Lightning."""

from typing import Any

import peerdg._vision  # isort: skip  # noqa: F401  (first: lightning imports torchvision)
import torch
from lightning import LightningModule
from torch import Tensor

from peerdg.methods.peer import PEER


class PeerModule(LightningModule):
    """Train PEER on batches of images and labels, and evaluate the task model.

    The loss is the same as in a loop of your own, and so are the snapshots. Batches have images in
    uint8 or floating point in [0, 1], not normalized. After training, `peer.deployed` is the model
    to ship. For another optimizer, override `configure_optimizers`.

    Args:
        peer: The method with its network.
        lr: Learning rate of Adam.

    Example:
        >>> module = PeerModule(PEER(model, PeerSettings(k=5, w=0.1)))
        >>> lightning.Trainer(max_epochs=60).fit(module, loader)
    """

    def __init__(self, peer: PEER, *, lr: float = 1e-4) -> None:
        super().__init__()
        self.peer = peer
        self.lr = lr

    def forward(self, images: Tensor) -> Tensor:
        """Compute the logits of the task model."""
        logits: Tensor = self.peer.networks["task"](images)
        return logits

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Train the proxy and the projection with Adam."""
        return torch.optim.Adam(self.peer.parameters(), lr=self.lr)

    def on_train_batch_start(self, *_: Any) -> None:
        """Draw a new augmentation policy every k epochs."""
        # Lightning skips `on_train_epoch_start` if it resumes from a checkpoint within an epoch.
        if self.peer.started != self.current_epoch:
            self.peer.start_epoch(self.current_epoch)

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Compute the loss and log its terms."""
        loss = self.peer.loss(*batch)
        self.log_dict(dict(loss))
        return loss.total

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Update the weights and the averages, and take a snapshot at the end of an epoch."""
        super().optimizer_step(*args, **kwargs)
        self.peer.update_averages()
        # Later hooks would come after a checkpoint of this step, or after validation.
        if not self.trainer.fit_loop.epoch_loop.batch_progress.is_last_batch:
            return
        self.peer.finish_epoch_averages(self.current_epoch)
        if self.peer.end_epoch(self.current_epoch).reset_optimizers:
            self.trainer.optimizers[0].state.clear()

    def validation_step(
        self, batch: tuple[Tensor, Tensor], batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Log the accuracy of the task model."""
        images, labels = batch
        right = (self(images).argmax(1) == labels).float().mean()
        self.log("accuracy", right, prog_bar=True, sync_dist=True)

    test_step = validation_step
