import shutil

import pytest
import torch

from peerdg.data import own_data
from peerdg.data.benchmarks import OwnDataSettings, benchmark
from peerdg.data.domain import Domain
from peerdg.data.own_data import check_folders, describe_duplicates, find_duplicates
from peerdg.errors import ConfigError, DataError, PeerdgWarning
from tests.data.image_files import encode, make_tree, picture, write_picture

BY_CLASS = ("cat", "dog", "horse")


def load(root, *targets, **settings):
    chosen = list(targets) or None
    return benchmark("own-data").load(OwnDataSettings(**settings), root=root, targets=chosen)


@pytest.fixture
def photos(tmp_path):
    return make_tree(tmp_path / "photos", *BY_CLASS, count=10)


@pytest.fixture
def sketches(tmp_path):
    folders = [f"x{i}" for i in range(5)]  # other pictures than those of `photos`
    make_tree(tmp_path / "spare", *folders, *BY_CLASS, count=4)
    root = tmp_path / "sketches"
    for name in BY_CLASS:
        shutil.copytree(tmp_path / "spare" / name, root / name)
    return root


@pytest.fixture
def both(tmp_path, photos, sketches):
    root = tmp_path / "both"
    shutil.copytree(photos, root / "photo")
    shutil.copytree(sketches, root / "sketch")
    return root


def test_a_folder_of_classes_can_be_loaded(photos):
    splits = load(photos)
    assert splits.train.classes == BY_CLASS
    assert (splits.train.name, len(splits.train), len(splits.validation)) == ("photos", 27, 3)
    assert sorted(splits.validation.labels.tolist()) == [0, 1, 2]
    assert not set(splits.train.paths) & set(splits.validation.paths)
    assert splits.targets == {}
    assert splits.train.image_size == (24, 24)


def test_a_target_folder_takes_its_name_and_the_sources_image_size(photos, sketches):
    splits = load(photos, str(sketches), size=16)
    assert list(splits.targets) == ["sketches"]
    assert len(splits.targets["sketches"]) == 12
    assert splits.targets["sketches"].image_size == splits.train.image_size == (16, 16)


def test_classes_are_matched_by_name_and_extra_ones_rejected_early(photos, tmp_path, monkeypatch):
    write_picture(tmp_path / "t/horse/1.png", 800)
    domain = load(photos, str(tmp_path / "t")).targets["t"]
    assert domain.classes == BY_CLASS
    assert set(domain.labels.tolist()) == {2}
    target = make_tree(tmp_path / "t", "cat", "dogs")
    monkeypatch.setattr(own_data, "read_images", None)
    with pytest.raises(DataError, match=r"'dogs' \(did you mean 'dog'\?\)"):
        load(photos, str(target))


def test_domains_of_one_folder_are_source_and_targets(both):
    splits = load(both, domain="Photo")
    assert (splits.train.name, list(splits.targets)) == ("photo", ["sketch"])
    assert all(path.startswith("photo/") for path in splits.train.paths)
    assert list(load(both, "SKETCH", domain="photo").targets) == ["sketch"]


def test_a_domain_must_be_chosen_and_known(both):
    with pytest.raises(ConfigError, match="2 domains: photo, sketch"):
        load(both)
    with pytest.raises(ConfigError, match=r"no domain 'foto'.*\n.*'photo'"):
        load(both, domain="foto")
    with pytest.raises(ConfigError, match=r"target 'sketches'.*\n.*'sketch'"):
        load(both, "sketches", domain="photo")


def test_a_domain_equals_the_same_images_in_a_separate_folder(both, photos, sketches):
    one = load(both, domain="photo")
    two = load(photos, str(sketches))
    assert one.fingerprint["train"] == two.fingerprint["train"]
    assert one.fingerprint["validation"] == two.fingerprint["validation"]
    assert one.fingerprint["target:sketch"] == two.fingerprint["target:sketches"]


def test_folders_called_train_val_and_test_are_splits(tmp_path):
    root = tmp_path / "pets"
    for number, split in enumerate(("train", "val", "test")):
        for index in range(3 - number):
            for label in ("cat", "dog"):
                seed = 100 * number + 10 * index + (label == "cat")
                write_picture(root / split / label / f"{index}.png", seed)
    splits = load(root)
    assert (len(splits.train), len(splits.validation)) == (6, 4)
    assert {name: len(domain) for name, domain in splits.targets.items()} == {"test": 2}


def test_a_list_may_define_domains_and_splits(both, tmp_path):
    lines = ["path,label,domain,split"]
    for domain, split in (("photo", "train"), ("sketch", "test")):
        for name in BY_CLASS:
            lines += [f"both/{domain}/{name}/{i}.png,{name},{domain},{split}" for i in range(3)]
    (tmp_path / "list.csv").write_text("\n".join(lines))
    splits = load(tmp_path / "list.csv", domain="photo", validation_fraction=0.34)
    assert (len(splits.train), len(splits.validation)) == (6, 3)
    assert len(splits.targets["sketch"]) == 9


def test_validation_is_drawn_by_a_separate_seed_or_from_a_folder(photos, sketches):
    first, again, other = (load(photos, split_seed=seed).validation.paths for seed in (0, 0, 1))
    assert first == again != other
    splits = load(photos, validation_folder=str(sketches))
    assert (len(splits.train), len(splits.validation)) == (30, 12)


def test_target_names_are_unique_and_not_reserved(photos, tmp_path):
    for number, place in enumerate(("a/test", "b/test", "c/validation")):
        write_picture(tmp_path / place / "cat" / "1.png", 900 + number)
    targets = [str(tmp_path / place) for place in ("a/test", "b/test", "c/validation")]
    assert list(load(photos, *targets).targets) == ["test", "b-test", "c-validation"]


def test_duplicates_in_source_and_target_give_a_warning(photos, sketches):
    shutil.copy(photos / "cat/0.png", sketches / "dog/copy.png")
    with pytest.warns(PeerdgWarning, match=r"1 images occur in two parts.*sketches: dog/copy\.png"):
        load(photos, str(sketches))


def test_bad_images_are_an_error_unless_skipped(photos):
    (photos / "cat/bad.jpg").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"1 of 31 images of 'photos' cannot be used:\n  cat/bad"):
        load(photos)
    splits = load(photos, skip_bad_images=True)
    assert len(splits.train) + len(splits.validation) == 30
    assert splits.train.skipped == (("cat/bad.jpg", "it is not an image in a known format"),)


def test_one_class_is_rejected_for_training_but_not_as_target(photos, tmp_path):
    cats = make_tree(tmp_path / "cats", "x", "cat")
    shutil.rmtree(cats / "x")
    with pytest.raises(DataError, match="one class"):
        load(cats)
    with pytest.warns(PeerdgWarning, match="two parts"):  # the same made pictures
        assert len(load(photos, str(cats)).targets["cats"]) == 3


def test_targets_of_a_trained_model_use_its_classes_and_size(sketches):
    settings = OwnDataSettings(size=20)
    classes = ("dog", "zebra", "cat", "horse")
    (domain,) = own_data.read_targets([str(sketches)], classes=classes, settings=settings).values()
    assert (domain.classes, domain.image_size) == (classes, (20, 20))
    assert torch.bincount(domain.labels).tolist() == [4, 0, 4, 4]


def messages(problems, severity) -> str:
    return "\n".join(p.message for p in problems if p.severity == severity)


def test_every_bad_file_is_listed_with_its_reason_and_a_remedy(photos):
    assert check_folders([photos])[1] == []
    (photos / "cat/empty.png").write_bytes(b"")
    (photos / "dog/text.jpg").write_text("hello")
    _, (problem,) = check_folders([photos])
    assert problem.severity == "error"
    assert "2 of 32 images of 'photos'" in problem.message
    assert "cat/empty.png: the file is empty" in problem.message


def test_duplicates_are_reported_with_both_paths(photos, sketches):
    shutil.copy(photos / "cat/0.png", photos / "dog/copy.png")
    shutil.copy(photos / "cat/1.png", photos / "cat/copy.png")
    (sketches / "dog/same.bmp").write_bytes(encode(picture(102), "BMP"))  # dog/2 in another format
    text = messages(check_folders([photos, sketches])[1], "note")
    assert "3 images" in text
    assert "photos: cat/0.png = photos: dog/copy.png" in text
    assert "photos: dog/2.png = sketches: dog/same.bmp" in text


def test_folder_problems_are_part_of_the_report(photos):
    (photos / "zebra").mkdir()
    write_picture(photos / "Dog/1.png", 700)
    (photos / "dog/1.heic").touch()
    _, problems = check_folders([photos])
    assert "class folders without images: zebra" in messages(problems, "training")
    assert "only one image: Dog" in messages(problems, "training")
    assert "'Dog' and 'dog'" in messages(problems, "error")
    assert "dog/1.heic" in messages(problems, "note")
    assert problems[-1].severity == "note"


def test_each_domain_of_a_folder_is_a_part(both):
    (both / "photo/cat/bad.png").write_bytes(b"")
    parts, _ = check_folders([both])
    assert {name: len(domain) for name, domain in parts.items()} == {"photo": 30, "sketch": 12}


def make(name, images):
    return Domain(name, ("a", "b"), images, torch.zeros(len(images), dtype=torch.int64))


def random_images(count, seed=0, side=12):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 3, side, side), generator=generator, dtype=torch.uint8)


def test_every_image_that_occurs_in_two_parts_is_found():
    images, others = random_images(50), random_images(80, seed=1)
    others[torch.arange(0, 50, 2) + 7] = images[::2]
    pairs = find_duplicates({"train": make("x", images), "sketch": make("y", others)})
    assert sorted((*first, *second) for first, second in pairs) == sorted(
        ("train", f"image {i}", "sketch", f"image {i + 7}") for i in range(0, 50, 2)
    )


def test_images_that_differ_in_one_value_are_not_duplicates():
    images = random_images(1).repeat(1 + 3 * 12 * 12, 1, 1, 1)
    for position in range(3 * 12 * 12):
        images[1 + position].view(-1)[position] ^= 1
    assert find_duplicates({"x": make("x", images)}) == []


def test_many_copies_are_each_paired_with_the_first():
    found = find_duplicates({"x": make("x", torch.zeros(500, 3, 8, 8, dtype=torch.uint8))})
    assert len(found) == 499
    assert {first.path for first, _ in found} == {"image 0"}
    assert describe_duplicates(found).endswith(" and 494 more")


def test_images_next_to_class_folders_are_noted(photos):
    write_picture(photos / "top.png", 99)
    with pytest.warns(PeerdgWarning, match="top.png"):
        assert len(load(photos).parts) == 2


def test_classes_with_two_spellings_of_one_letter_are_one_class_with_a_note(tmp_path):
    root = make_tree(tmp_path / "photos", "caf\u00e9", "cafe\u0301", "tea", count=4)
    with pytest.warns(PeerdgWarning, match="same name"):
        assert load(root).train.classes == ("caf\u00e9", "tea")
