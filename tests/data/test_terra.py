from dataclasses import replace

import pytest

from peerdg.data import terra
from peerdg.data.benchmarks import TerraSettings, benchmark
from tests.data.published_files import domainbed_split, expect, labels_by_colour, write_domain

CLASSES = tuple("bird bobcat cat coyote dog empty opossum rabbit raccoon squirrel".split())
PUBLISHED = terra.LAYOUT.counts
LOCATIONS = ("location_100", "location_38", "location_43", "location_46")


@pytest.fixture(autouse=True)
def small_counts(monkeypatch):
    expect(monkeypatch, terra, **dict.fromkeys(LOCATIONS, 30))


def write_set(root, *, spelling=str, locations=LOCATIONS):
    for name in locations:
        write_domain(root / spelling(name), name, CLASSES, each=3)
    return root


def load(root, targets=None, **switches):
    return benchmark("terra").load(TerraSettings(**switches), root=root, targets=targets)


@pytest.mark.parametrize(
    "spelling",
    [
        str,
        str.title,
        lambda name: name.replace("_", " "),
        lambda name: name.replace("location_", "L"),
    ],
)
@pytest.mark.parametrize("above", ["", "terra_incognita"])
def test_location_100_is_the_source_and_the_papers_three_are_targets(spelling, above, tmp_path):
    write_set(tmp_path / above, spelling=spelling)
    splits = load(tmp_path)
    assert splits.train.name == "location_100"
    assert list(splits.targets) == ["location_38", "location_43", "location_46"]
    assert splits.train.classes == CLASSES
    for domain in (splits.train, splits.validation, *splits.targets.values()):
        assert domain.labels.tolist() == labels_by_colour(domain)


def test_the_random_split_is_that_of_domainbed(tmp_path):
    splits = load(write_set(tmp_path), test="random")
    whole = [f"location_100/{name}/{number:02d}.png" for name in CLASSES for number in range(3)]
    kept, held = domainbed_split(30, 0, 0)  # "location_100" sorts before "location_38"
    assert splits.train.paths == tuple(whole[row] for row in kept)
    assert splits.validation.paths == tuple(whole[row] for row in held)
    assert {len(t) for t in splits.targets.values()} == {24}


def test_everything_may_be_for_training(tmp_path):
    splits = load(write_set(tmp_path), split="none", source="location_43")
    assert (splits.train.name, len(splits.train), splits.validation) == ("location_43", 30, None)
    assert "location_100" in splits.targets


def test_short_names_of_locations_are_understood(tmp_path):
    assert list(load(write_set(tmp_path), ["L46", "l38"]).targets) == ["location_46", "location_38"]


def test_verify_knows_both_releases(tmp_path, monkeypatch):
    two = {name: (30, 33) for name in LOCATIONS}
    monkeypatch.setattr(terra, "LAYOUT", replace(terra.LAYOUT, counts=two))
    root = write_set(tmp_path, locations=LOCATIONS[:3])
    write_domain(root / "location_38", "location_38", CLASSES[:3], each=1, first=3)
    (root / "location_43" / "dog" / "00.png").unlink()
    found = {r.domain: r for r in terra.verify(root)}
    assert (found["location_100"].status, found["location_100"].expected) == ("found", 30)
    assert (found["location_38"].status, found["location_38"].expected) == ("found", 33)
    assert found["location_43"].problems == ("29 images where 30 or 33 are published.",)
    assert found["location_46"].status == "missing"


def test_the_published_releases_add_up():
    assert set(PUBLISHED) == set(benchmark("terra").domains)
    assert [sum(counts[i] for counts in PUBLISHED.values()) for i in (0, 1)] == [24_330, 24_788]
