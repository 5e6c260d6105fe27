"""All operations by name: `(images, strength)` to images, each image with its own strength.

The strength means what it means in torchvision's RandAugment: a tangent for shears, pixels for
translations, degrees for the rotation, the distance of the factor from 1 for brightness, color,
contrast and sharpness, bits for posterize, a fraction of 255 for solarize. It comes in double
precision, as Python's floats do, because torchvision rounds it to float32 late. `cutout` also
takes the centres of its squares.
"""

from peerdg.augment.blends import color as color
from peerdg.augment.blends import contrast as contrast
from peerdg.augment.blends import identity as identity
from peerdg.augment.blends import sharpness as sharpness
from peerdg.augment.curves import autocontrast as autocontrast
from peerdg.augment.curves import brightness as brightness
from peerdg.augment.curves import equalize as equalize
from peerdg.augment.curves import invert as invert
from peerdg.augment.curves import posterize as posterize
from peerdg.augment.curves import solarize as solarize
from peerdg.augment.curves import solarize_add as solarize_add
from peerdg.augment.geometry import cutout as cutout
from peerdg.augment.geometry import rotate as rotate
from peerdg.augment.geometry import shear_x as shear_x
from peerdg.augment.geometry import shear_y as shear_y
from peerdg.augment.geometry import translate_x as translate_x
from peerdg.augment.geometry import translate_y as translate_y
