"""Operations of the families, compared with scipy, closed forms and invariances."""

import numpy as np
import pytest
from scipy import ndimage
from scipy.spatial import cKDTree

from peerdg.crafted import drawing, filters, geometric, values
from peerdg.crafted.operation import convolve, from_hsv, smooth, smooth_plane, to_hsv
from tests.crafted.test_sets import change, photo


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("shape", [(3, 3), (1, 5), (7, 3)])
def test_convolve_is_correlation_with_a_replicated_border(shape):
    image, kernel = photo(20), rng().normal(size=shape).astype(np.float32)
    expected = ndimage.correlate(image.astype(float), kernel[..., None], mode="nearest")
    np.testing.assert_allclose(convolve(image, kernel), expected, atol=2e-3)


def test_smooth_is_a_gaussian_filter():
    image = photo(40)
    expected = ndimage.gaussian_filter(
        image.astype(float), (2, 2, 0), mode="nearest", radius=(6, 6, 0)
    )
    np.testing.assert_allclose(smooth(image, 2.0), expected, atol=2e-3)


def test_hsv_conversion_can_be_inverted():
    assert change(from_hsv(to_hsv(photo(32))), photo(32)) < 2


def test_identity_strengths_change_nothing():
    image = photo(33)
    np.testing.assert_allclose(geometric.scale(image, rng(), factor=1.0), image, atol=0.1)
    still = geometric.polar(image, rng(), twist=0, wave=0, waves=3)
    np.testing.assert_allclose(still, image, atol=0.5)


def test_a_quarter_turn_and_a_shift_by_whole_pixels_are_exact():
    image = photo(20)
    np.testing.assert_allclose(
        geometric.rotate(image, rng(), degrees=90), np.rot90(image, -1), atol=0.1
    )
    moved = geometric.translate(image, rng(), down=0.25, right=-0.1)
    np.testing.assert_allclose(moved[5:, :-2], image[:-5, 2:], atol=0.1)
    assert moved[:4].max() < 0.1


def test_a_jigsaw_keeps_every_pixel():
    image = photo(40)
    mixed = geometric.jigsaw(image, rng(), tiles=10)
    assert not np.array_equal(mixed, image)
    assert np.array_equal(np.sort(mixed, axis=None), np.sort(image, axis=None))


def test_noise_has_the_given_scale():
    gray = np.full((120, 120, 3), 128, dtype=np.float32)
    assert (values.gaussian_noise(gray, rng(), scale=60) - gray).std() == pytest.approx(60, 0.03)
    laplace = values.laplace_noise(gray, rng(), scale=60) - gray
    assert np.abs(laplace).mean() == pytest.approx(60, 0.03)
    poisson = values.poisson_noise(gray, rng(), rate=50) - gray
    assert np.abs(poisson).mean() == pytest.approx(50, 0.03)
    assert abs(poisson.mean()) < 2


@pytest.mark.parametrize("black", [0, 0.5, 1])
def test_covered_squares_have_the_given_share(black):
    gray = np.full((200, 200, 3), 128, dtype=np.float32)
    result = values.cover(gray, rng(), black=black, share=0.4, side=1)
    assert (result == 0).mean() == pytest.approx(0.4 * black, abs=0.02)
    assert (result == 255).mean() == pytest.approx(0.4 * (1 - black), abs=0.02)
    assert (result[..., 0] == result[..., 2]).all()


def test_every_blur_keeps_flat_images_and_the_mean_of_others():
    flat = np.full((24, 24, 3), 90, dtype=np.float32)
    image = photo(48)
    for operation in filters.BLUR:
        np.testing.assert_allclose(operation(flat, rng()), flat, atol=1)
        assert operation(image, rng()).mean() == pytest.approx(image.mean(), abs=4)


def test_mean_shift_flattens_areas_and_keeps_the_edge_between_them():
    image = np.full((30, 30, 3), 60, dtype=np.float32)
    image[:, 15:] = 200
    noisy = image + rng().normal(0, 12, image.shape).astype(np.float32)
    result = filters.mean_shift(noisy, rng(), radius=5, color=60)
    assert np.abs(result - image).max() < 12
    assert np.abs(result - image).std() < np.abs(noisy - image).std() / 3


def test_a_full_hue_rotation_and_white_light_change_little():
    image = photo(32)
    assert change(values.change_hsv(image, rng(), degrees=360), image) < 2
    np.testing.assert_allclose(values.white_of(6600), 1, atol=0.02)
    assert values.white_of(2000)[2] < 0.2 < values.white_of(2000)[0]  # candle light lacks blue


def test_few_bits_leave_a_power_of_two_levels():
    assert set(np.unique(values.few_bits(photo(32), rng(), bits=2))) == {0, 85, 170, 255}
    few = values.few_colors(photo(32), rng(), colors=4)
    assert len(np.unique(few.reshape(-1, 3), axis=0)) == 4


def test_adaptive_equalization_of_one_tile_without_limit_is_global():
    image = photo(32)
    value = to_hsv(image)[..., 2]
    ranks = np.array([(value <= v).mean() for v in range(256)]) * 255
    result = to_hsv(values.adaptive(image, rng(), clip=256, tiles=1))[..., 2]
    assert np.abs(result - ranks[value.astype(int)]).max() <= 2


def test_adaptive_equalization_with_limit_zero_is_linear():
    image = photo(32)
    assert change(values.adaptive(image, rng(), clip=0, tiles=3), image) < 2.5


def test_canny_draws_one_thin_line_along_a_step():
    plane = np.zeros((20, 20), dtype=np.float32)
    plane[:, 10:] = 200
    edges = drawing.canny(smooth_plane(plane, 1.0), weak=5, strong=20)
    assert edges[1:-1].sum(axis=1).max() == 1
    assert set(np.nonzero(edges)[1]) <= {9, 10}
    assert not drawing.canny(np.full((9, 9), 70, np.float32), weak=5, strong=20).any()


@pytest.mark.parametrize("seed", range(5))
def test_connected_parts_contain_a_seed(seed):
    mask = rng(seed).random((40, 40)) < 0.45
    seeds = rng(seed + 1).random((40, 40)) < 0.02
    labels, _ = ndimage.label(mask, structure=np.ones((3, 3)))
    expected = np.isin(labels, np.unique(labels[mask & seeds])) & mask
    assert np.array_equal(drawing.connected(mask, seeds), expected)


@pytest.mark.parametrize("count", [1, 3, 50, 700])
def test_each_pixel_finds_its_nearest_point(count):
    height, width = 70, 45
    points = (rng(count).random((count, 2)) * (height, width)).astype(np.float32)
    y, x = np.mgrid[:height, :width] + 0.5
    places = np.stack([y.ravel(), x.ravel()], axis=1)
    expected, _ = cKDTree(points).query(places)
    labels = drawing.nearest_point(height, width, points).ravel()
    distances = np.linalg.norm(points[labels] - places, axis=1)
    np.testing.assert_allclose(distances, expected, atol=1e-4)


def test_superpixels_do_not_cross_a_strong_edge():
    image = np.full((60, 60, 3), 20, dtype=np.float32)
    image[:, 27:] = 230
    labels = drawing.slic(image, side=15, compactness=30)
    assert not set(labels[:, :27].ravel()) & set(labels[:, 27:].ravel())
    assert len(np.unique(labels)) > 8


def test_areas_are_filled_with_their_mean_color():
    image = photo(30)
    labels = np.arange(900).reshape(30, 30) // 90
    result = drawing.flatten(image, labels, 1.0, rng())
    np.testing.assert_allclose(
        result[3:6], np.broadcast_to(image[3:6].mean((0, 1)), (3, 30, 3)), atol=0.01
    )
    assert np.array_equal(drawing.flatten(image, labels, 0.0, rng()), image)


def test_rain_and_snow_cover_about_the_given_share():
    black = np.zeros((200, 200, 3), dtype=np.float32)
    for size, length in ((4.0, 6.0), (1.5, 30.0)):
        strengths = {"cover": 0.2, "size": size, "length": length, "angle": 70.0}
        snow = filters.fall(black, rng(), color=255, light=1, **strengths)
        assert 0.1 < (snow > 40).mean() < 0.35


def test_a_cartoon_has_few_colors_and_black_lines():
    image = photo(96)
    drawn = drawing.cartoon(image, rng(), radius=4, color=50, saturation=2, line=1, threshold=3)
    assert (drawn.max(axis=2) < 10).mean() > (image.max(axis=2) < 10).mean() + 0.02
    few = len(np.unique(np.rint(drawn).reshape(-1, 3), axis=0))
    assert few < len(np.unique(image.reshape(-1, 3), axis=0)) / 3
