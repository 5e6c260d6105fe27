"""Train PEER with Lightning, which adds devices, checkpoints and loggers to the loop."""

from peerdg import PEER, PeerSettings, build_classifier  # before lightning
from peerdg.data.benchmarks import DigitsMiniSettings
from peerdg.data.digits_mini import load
from peerdg.integrations.lightning import PeerModule

import lightning  # isort: skip
import torch  # isort: skip
from torch.utils.data import DataLoader, TensorDataset  # isort: skip

lightning.seed_everything(0)
data = load(DigitsMiniSettings(train=1000))
# Images are uint8 [N, 3, 32, 32] and not normalized.
train, validation, test = (
    TensorDataset(domain.images, domain.labels)
    for domain in (data.train, data.validation, data.targets["uci"])
)
loader = DataLoader(train, batch_size=50, shuffle=True, drop_last=True)

model = build_classifier("digits-cnn-half", classes=data.train.classes)  # pre-train it first
peer = PEER(model, PeerSettings(k=2, w=0.1))
module = PeerModule(peer, lr=1e-3)

trainer = lightning.Trainer(
    max_epochs=4,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_model_summary=False,
)
trainer.fit(module, loader, DataLoader(validation, batch_size=250))
(result,) = trainer.test(module, DataLoader(test, batch_size=250))  # accuracy of the task model
torch.save(peer.deployed.state_dict(), "task.pt")
