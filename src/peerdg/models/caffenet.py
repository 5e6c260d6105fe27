"""CaffeNet: AlexNet as it was trained with Caffe, the backbone of the older PACS papers."""

from collections import OrderedDict

from jaxtyping import Float
from torch import Tensor, nn

from peerdg.errors import DataError

# Caffe's weights expect values around ±120: images from 0 to 255 minus their mean. An image
# normalised with ImageNet's mean and standard deviation (about 0.226 * 255 = 57.6) comes back to
# that range when it is multiplied by this.
INPUT_SCALE = 57.6


class CaffeNet(nn.Module):
    """Grouped AlexNet with local response normalisation: 3x227x227 -> 4096 features.

    Channels 96, 256, 384, 384, 256; convolutions 2, 4 and 5 in two groups. Not torchvision's
    AlexNet, which has 64, 192, 384, 256, 256 channels and neither groups nor normalisation. The
    features are fc7 after ReLU and dropout. The layers are called as in the converted weights that
    JigenDG and its successors distribute, so these files load.
    """

    def __init__(self) -> None:
        super().__init__()
        self.feature_dim = 4096
        self.features = nn.Sequential(
            OrderedDict(
                conv1=nn.Conv2d(3, 96, kernel_size=11, stride=4),
                relu1=nn.ReLU(inplace=True),
                pool1=_pool(),
                norm1=nn.LocalResponseNorm(5, alpha=1e-4, beta=0.75),
                conv2=nn.Conv2d(96, 256, kernel_size=5, padding=2, groups=2),
                relu2=nn.ReLU(inplace=True),
                pool2=_pool(),
                norm2=nn.LocalResponseNorm(5, alpha=1e-4, beta=0.75),
                conv3=nn.Conv2d(256, 384, kernel_size=3, padding=1),
                relu3=nn.ReLU(inplace=True),
                conv4=nn.Conv2d(384, 384, kernel_size=3, padding=1, groups=2),
                relu4=nn.ReLU(inplace=True),
                conv5=nn.Conv2d(384, 256, kernel_size=3, padding=1, groups=2),
                relu5=nn.ReLU(inplace=True),
                pool5=_pool(),
            )
        )
        self.classifier = nn.Sequential(
            OrderedDict(
                fc6=nn.Linear(256 * 6 * 6, 4096),
                relu6=nn.ReLU(inplace=True),
                drop6=nn.Dropout(),
                fc7=nn.Linear(4096, 4096),
                relu7=nn.ReLU(inplace=True),
                drop7=nn.Dropout(),
            )
        )

    def forward(self, x: Float[Tensor, "batch 3 h w"]) -> Float[Tensor, "batch 4096"]:
        """H(x), non-negative.

        Raises:
            DataError: If the images are of a size that does not end in a 6 x 6 map.
        """
        maps: Tensor = self.features(x * INPUT_SCALE)  # (batch, 256, 6, 6)
        if maps.shape[-2:] != (6, 6):
            raise DataError(
                f"CaffeNet takes images of 227 x 227 pixels, not {x.shape[2]} x {x.shape[3]}.",
                hint="Resize the images to 227 pixels, or choose another --backbone.",
            )
        features: Tensor = self.classifier(maps.flatten(1))
        return features


def _pool() -> nn.MaxPool2d:
    return nn.MaxPool2d(kernel_size=3, stride=2, ceil_mode=True)
