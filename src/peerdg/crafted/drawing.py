"""Redraw images with lines and flat areas: families `artistic`, `edges` and `segmentation`."""

import math

import numpy as np
from numpy.typing import NDArray

from peerdg.crafted.filters import mean_shift
from peerdg.crafted.operation import (
    Operation,
    Picture,
    Plane,
    Random,
    between,
    blend,
    convolve,
    from_hsv,
    luma,
    pixels,
    smooth_plane,
    to_hsv,
)

Mask = NDArray[np.bool_]
Labels = NDArray[np.int64]  # [h, w], index of the area that each pixel belongs to
Points = NDArray[np.float32]  # [n, 2], positions (y, x)
Line = NDArray[np.floating]

_SOBEL = np.array([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]], dtype=np.float32) / 4
_CONTRAST = 100  # minimum luminance difference between lines and background
_TILE = 32  # side of a tile in pixels, see `nearest_point`


def cartoon(
    image: Picture,
    rng: Random,
    *,
    radius: float,
    color: float,
    saturation: float,
    line: float,
    threshold: float,
) -> Picture:
    """Flatten areas, strengthen their colors, and draw lines where brightness drops.

    Details smaller than `radius` pixels vanish, and areas that differ by less than `color` merge.
    Pixels darker than their surroundings by more than `threshold` become lines of width `line`.
    """
    flat = mean_shift(image, rng, radius=radius, color=color)
    hsv = to_hsv(np.rint(flat / 32) * 32)
    painted = from_hsv(hsv * np.array([1, saturation, 1], dtype=np.float32))
    light = luma(flat)
    darker = smooth_plane(light, 2 * line) - smooth_plane(light, line)
    ink = np.clip(darker / threshold - 1, 0, 1)[..., None]
    return painted * (1 - ink)


ARTISTIC = (
    Operation(
        "cartoon",
        cartoon,
        {
            "radius": pixels(5, 8),
            "color": between(40, 70),
            "saturation": between(1.5, 2.5),
            "line": pixels(1.5, 2.5, at_least=0.5),
            "threshold": between(2, 4),
        },
    ),
)


def canny_lines(
    image: Picture, rng: Random, *, sigma: float, share: float, weak: float, strong: float
) -> Picture:
    """Draw Canny edges in a random color on a random background."""
    edges = canny(smooth_plane(luma(image), sigma), weak=weak, strong=strong)
    line, ground = _two_colors(rng)
    return blend(image, np.where(edges[..., None], line, ground), share)


def canny(plane: Plane, *, weak: float, strong: float) -> Mask:
    """Find edges that are strong, or weak and connected to a strong one (Canny 1986).

    `plane` is a smoothed image. `weak` and `strong` are thresholds in gray levels per pixel.
    """
    x = convolve(plane[..., None], _SOBEL)[..., 0] / 2
    y = convolve(plane[..., None], _SOBEL.T)[..., 0] / 2
    size = np.hypot(x, y)
    thin = size * _is_ridge(size, x, y)
    return connected(thin >= weak, thin >= strong)


def connected(mask: Mask, seeds: Mask) -> Mask:
    """Select the 8-connected regions of `mask` that contain a seed."""
    grown = np.pad(mask & seeds, 1)
    inside = np.pad(mask, 1)
    while True:
        wider = grown.copy()
        wider[1:] |= grown[:-1]
        wider[:-1] |= grown[1:]
        tall = wider.copy()
        wider[:, 1:] |= tall[:, :-1]
        wider[:, :-1] |= tall[:, 1:]
        wider &= inside
        if np.array_equal(wider, grown):
            return grown[1:-1, 1:-1]
        grown = wider


def _is_ridge(size: Plane, x: Plane, y: Plane) -> Mask:
    """Mark pixels where the gradient is a local maximum along its own direction."""
    around = np.pad(size, 1)
    height, width = size.shape
    sector = np.rint(np.arctan2(y, x) / (np.pi / 4)).astype(int) % 4
    ridge = np.zeros(size.shape, dtype=bool)
    for number, (down, right) in enumerate(((0, 1), (1, 1), (1, 0), (1, -1))):
        ahead = around[1 + down : 1 + down + height, 1 + right : 1 + right + width]
        behind = around[1 - down : 1 - down + height, 1 - right : 1 - right + width]
        ridge |= (sector == number) & (size >= ahead) & (size > behind)
    return ridge


def _two_colors(rng: Random) -> tuple[Picture, Picture]:
    """Draw two random colors that differ in brightness."""
    while True:
        line, ground = rng.uniform(0, 255, (2, 3)).astype(np.float32)
        if abs(float(luma(line) - luma(ground))) >= _CONTRAST:
            return line, ground


EDGES = (
    Operation(
        "canny",
        canny_lines,
        {
            "sigma": pixels(2, 2, at_least=0.5),
            "share": between(0.8, 1),
            "weak": between(4, 6),
            "strong": between(10, 15),
        },
    ),
)


def superpixels(
    image: Picture, rng: Random, *, side: float, compactness: float, share: float
) -> Picture:
    """Fill superpixels (areas of similar color) with their mean color."""
    return flatten(image, slic(image, side, compactness), share, rng)


def random_cells(image: Picture, rng: Random, *, side: float, share: float) -> Picture:
    """Fill the Voronoi cells of random points with their mean color."""
    height, width = image.shape[:2]
    count = max(1, round(height * width / side**2))
    points = (rng.random((count, 2)) * (height, width)).astype(np.float32)
    return flatten(image, nearest_point(height, width, points), share, rng)


def regular_cells(image: Picture, rng: Random, *, side: float, share: float) -> Picture:
    """Fill grid squares with their mean color, as in a mosaic."""
    height, width = image.shape[:2]
    rows, columns = (max(1, round(n / side)) for n in (height, width))
    y, x = np.arange(height) * rows // height, np.arange(width) * columns // width
    return flatten(image, y[:, None] * columns + x[None], share, rng)


def loose_cells(image: Picture, rng: Random, *, side: float, lost: float, share: float) -> Picture:
    """Fill the Voronoi cells of an incomplete grid with their mean color."""
    height, width = image.shape[:2]
    points = grid_points(height, width, side)
    remain = rng.random(len(points)) >= lost
    remain[rng.integers(len(points))] = True
    return flatten(image, nearest_point(height, width, points[remain]), share, rng)


def flatten(image: Picture, labels: Labels, share: float, rng: Random) -> Picture:
    """Fill a random fraction of the areas with their mean color."""
    count = int(labels.max()) + 1
    flat = labels.ravel()
    size = np.maximum(np.bincount(flat, minlength=count), 1)
    sums = [np.bincount(flat, image[..., c].ravel(), count) for c in range(3)]
    mean = (np.stack(sums, axis=1) / size[:, None]).astype(np.float32)
    painted = rng.random(count) < share
    return np.where(painted[labels][..., None], mean[labels], image)


def grid_points(height: int, width: int, side: float) -> Points:
    """Return the centers of a grid of squares that covers the image."""
    axes = []
    for length in (height, width):
        count = max(1, round(length / side))
        axes.append((np.arange(count) + 0.5) * length / count)
    points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
    return points.reshape(-1, 2).astype(np.float32)


def nearest_point(height: int, width: int, points: Points) -> Labels:
    """Return the index of the point nearest to each pixel, searching tile by tile."""
    labels = np.empty((height, width), dtype=np.int64)
    margin = 3 * math.sqrt(height * width / len(points))
    for top in range(0, height, _TILE):
        for left in range(0, width, _TILE):
            rows = np.arange(top, min(top + _TILE, height)) + 0.5
            columns = np.arange(left, min(left + _TILE, width)) + 0.5
            labels[top : top + _TILE, left : left + _TILE] = _nearest(rows, columns, points, margin)
    return labels


def _nearest(rows: Line, columns: Line, points: Points, margin: float) -> Labels:
    """Return the point nearest to each pixel in a tile, widening the margin if needed."""
    low, high = (np.array([line[end] for line in (rows, columns)]) for end in (0, -1))
    near = np.flatnonzero(((points > low - margin) & (points < high + margin)).all(axis=1))
    if len(near) == 0:
        near = np.arange(len(points))
    y, x = points[near].T
    # (rows, columns, points)
    distance = ((rows[:, None] - y) ** 2)[:, None] + (columns[:, None] - x) ** 2
    if len(near) < len(points) and float(distance.min(axis=2).max()) > margin**2:
        return _nearest(rows, columns, points, 2 * margin)
    return np.asarray(near[distance.argmin(axis=2)])


def slic(image: Picture, side: float, compactness: float, *, rounds: int = 5) -> Labels:
    """Segment an image by simple linear iterative clustering (Achanta et al. 2012), in RGB.

    This is k-means over color and position, starting from squares of `side` pixels. Each pixel only
    considers the nine areas that started around it, so the cost does not depend on the number of
    areas. A distance of `side` pixels counts as much as `compactness` color levels.
    """
    height, width = image.shape[:2]
    rows, columns = (max(1, round(n / side)) for n in (height, width))
    y, x = np.mgrid[:height, :width]
    weight = compactness / side
    features = np.concatenate([image, weight * y[..., None], weight * x[..., None]], axis=2)
    features = features.reshape(-1, 5).astype(np.float32)
    row, column = (y * rows // height).ravel(), (x * columns // width).ravel()
    down, right = (offset.reshape(9, 1) - 1 for offset in np.mgrid[:3, :3])
    candidates = np.clip(row + down, 0, rows - 1) * columns  # (9, pixels)
    candidates = candidates + np.clip(column + right, 0, columns - 1)
    labels: Labels = row * columns + column
    for _ in range(rounds):
        size = np.maximum(np.bincount(labels, minlength=rows * columns), 1)
        sums = [np.bincount(labels, features[:, i], rows * columns) for i in range(5)]
        centers = (np.stack(sums, axis=1) / size[:, None]).astype(np.float32)
        differences = (features - centers[candidate] for candidate in candidates)
        distance = np.stack([np.einsum("ij,ij->i", each, each) for each in differences])
        labels = np.take_along_axis(candidates, distance.argmin(0)[None], axis=0)[0]
    return labels.reshape(height, width)


_SHARE = between(0.8, 1)

SEGMENTATION = (
    Operation(
        "superpixels",
        superpixels,
        {"side": pixels(24, 36), "compactness": between(40, 80), "share": _SHARE},
        smallest=64,
    ),
    Operation("random cells", random_cells, {"side": pixels(8, 13, at_least=1.6), "share": _SHARE}),
    Operation(
        "regular cells", regular_cells, {"side": pixels(8, 13, at_least=1.6), "share": _SHARE}
    ),
    Operation(
        "loose cells",
        loose_cells,
        {"side": pixels(8, 12, at_least=1.5), "lost": between(0.1, 0.4), "share": _SHARE},
    ),
)
