import os

import pytest

from peerdg.data.folder import image_files, list_folder
from peerdg.errors import DataError
from tests.data.image_files import touch_tree

PETS = ("cat/1.jpg", "cat/2.PNG", "dog/1.jpeg", "dog/2.webp")


def scan(root, *, layout="auto", training=True):
    return list_folder(root, layout=layout).require(training=training)


def paths(listing) -> list[str]:
    return [item.path.relative_to(listing.root).as_posix() for item in listing.items]


def problem(listing, severity) -> str:
    return " ".join(p.message for p in listing.problems if p.severity == severity)


def test_folders_are_classes(tmp_path):
    listing = scan(touch_tree(tmp_path, *PETS))
    assert listing.classes == ("cat", "dog")
    assert listing.domains == ()
    assert paths(listing) == list(PETS)
    assert [file.label for file in listing.files(("dog", "cat"), name="x")] == [1, 1, 0, 0]


def test_folders_of_folders_are_domains_of_classes(tmp_path):
    touch_tree(tmp_path, *(f"{domain}/{file}" for domain in ("photo", "sketch") for file in PETS))
    listing = scan(tmp_path)
    assert (listing.domains, listing.classes) == (("photo", "sketch"), ("cat", "dog"))
    assert paths(listing.part(domain="sketch")) == [f"sketch/{file}" for file in PETS]


def test_one_folder_of_class_folders_is_one_domain(tmp_path):
    listing = scan(touch_tree(tmp_path, *(f"photo/{file}" for file in PETS)))
    assert (listing.domains, listing.classes) == (("photo",), ("cat", "dog"))


def test_folders_inside_a_class_belong_to_it(tmp_path):
    files = ("cat/1.jpg", "cat/2020/may/2.jpg", "dog/1.jpg", "dog/2021/2.jpg")
    listing = scan(touch_tree(tmp_path, *files))
    assert (listing.classes, listing.domains) == (("cat", "dog"), ())
    assert sorted(paths(listing)) == sorted(files)


def test_ambiguous_layout_error_names_both_layouts(tmp_path):
    touch_tree(tmp_path, *(f"{c}/{n}.jpg" for c in ("a/x", "a/y", "b/z", "b/w") for n in (1, 2)))
    with pytest.raises(DataError, match=r"classes a, b .*or as domains a, b with classes w, x, y"):
        scan(tmp_path)
    assert scan(tmp_path, layout="classes").classes == ("a", "b")
    assert scan(tmp_path, layout="domains").domains == ("a", "b")


def test_stray_images_next_to_domains_make_the_layout_ambiguous(tmp_path):
    many = [f"{d}/{c}/{i}.jpg" for d in ("art", "photo") for c in ("cat", "dog") for i in range(9)]
    touch_tree(tmp_path, *many, "photo/stray.jpg")
    with pytest.raises(DataError, match="two ways"):
        scan(tmp_path)
    listing = scan(tmp_path, layout="domains")
    assert listing.ignored == ()
    assert "photo/stray.jpg" in problem(listing, "note")


def test_split_folders_are_not_mistaken_for_classes(tmp_path):
    touch_tree(tmp_path, *(f"sun/{s}/{c}/1.jpg" for s in ("train", "test") for c in "01"))
    touch_tree(tmp_path, *(f"voc/{s}/{c}/1.jpg" for s in ("train", "test") for c in "01"))
    with pytest.raises(DataError, match="splits of a data set") as caught:
        scan(tmp_path)
    assert "sun/test" in caught.value.hint
    assert list_folder(tmp_path / "sun").splits == ("train", "test")


def test_hidden_and_system_files_are_skipped_and_others_listed(tmp_path):
    silent = (
        ".ipynb_checkpoints/1.jpg", "cat/.DS_Store", "cat/Thumbs.db", "cat/._1.jpg", "desktop.ini",
        "__MACOSX/cat/1.jpg", ".git/config", "@eaDir/1.jpg",
    )  # fmt: skip
    listed = ("cat/3.heic", "cat/4.avif", "cat/notes.txt", "dog/movie.mp4", "labels.csv")
    listing = scan(touch_tree(tmp_path, *PETS, *silent, *listed))
    assert paths(listing) == list(PETS)
    assert listing.ignored == listed


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ((*PETS, "horse/notes.txt"), "class folders without images: horse.*\n.*remove the folder"),
        (("cat/1.jpg", "cat/2.jpg"), r"only one class \('cat'\).*\n.*photos/dog"),
        ((*PETS, "horse/1.jpg"), "only one image: horse.*\n.*remove the class"),
    ],
)
def test_unusable_classes_are_rejected_for_training_only(tmp_path, files, reason):
    touch_tree(tmp_path, *files)
    with pytest.raises(DataError, match=reason):
        scan(tmp_path)
    assert scan(tmp_path, training=False).classes[0] == "cat"


def test_a_folder_without_classes_or_images_is_rejected(tmp_path):
    touch_tree(tmp_path, "a/1.jpg", "b/cat/1.heic", "b/cat/2.heic", "b/dog/3.txt")
    with pytest.raises(DataError, match=r"directly in .*\n.*CSV"):
        scan(tmp_path / "a")
    with pytest.raises(DataError, match=r"no images .*2 x \.heic, 1 x \.txt"):
        scan(tmp_path / "b")


def test_composed_and_decomposed_accents_are_one_class(tmp_path):
    # As macOS stores it.
    touch_tree(tmp_path, *(f"{c}/{n}.jpg" for c in ("cafe\u0301", "tea") for n in (1, 2)))
    assert scan(tmp_path).classes == ("caf\u00e9", "tea")


def test_a_name_that_is_not_utf8_is_read_and_can_be_recorded(tmp_path):
    touch_tree(tmp_path, *PETS)
    (tmp_path / os.fsdecode(b"caf\xe9")).mkdir()
    for name in ("1.jpg", "2.jpg"):
        (tmp_path / os.fsdecode(b"caf\xe9") / name).touch()
    listing = scan(tmp_path)
    assert listing.classes == ("caf\\udce9", "cat", "dog")
    assert listing.items[0].path.exists()


def test_all_problems_come_in_one_message(tmp_path):
    touch_tree(tmp_path, *PETS, "Dog/1.jpg", "x.jpg", "horse/notes.txt")
    with pytest.raises(DataError, match=r"(?s)horse.*'Dog' and 'dog'"):
        scan(tmp_path)


def test_links_are_followed_without_cycles(tmp_path):
    touch_tree(tmp_path, "other/1.jpg", "other/2.jpg", *(f"in/{file}" for file in PETS))
    (tmp_path / "in/horse").symlink_to(tmp_path / "other")
    (tmp_path / "in/dog/3.jpg").symlink_to(tmp_path / "other/1.jpg")
    (tmp_path / "in/dog/round").symlink_to(tmp_path / "in")
    (tmp_path / "link").symlink_to(tmp_path / "in")
    expected = sorted([*PETS, "horse/1.jpg", "horse/2.jpg", "dog/3.jpg"])
    assert paths(scan(tmp_path / "link")) == expected


def test_a_link_does_not_hide_other_folders(tmp_path):
    touch_tree(tmp_path, *PETS, ".shy/1.jpg", ".shy/2.jpg")
    (tmp_path / "canis").symlink_to(tmp_path / "dog")
    (tmp_path / "shy").symlink_to(tmp_path / ".shy")
    copies = [file.replace("dog/", "canis/") for file in PETS if file.startswith("dog/")]
    assert paths(scan(tmp_path)) == sorted([*PETS, *copies, "shy/1.jpg", "shy/2.jpg"])


def test_the_order_does_not_depend_on_the_disk(tmp_path, monkeypatch):
    touch_tree(tmp_path, *PETS, "Zebra/1.jpg", "Ähre/1.jpg", "cat/sub/3.jpg")
    expected = list_folder(tmp_path).items
    real = os.walk
    monkeypatch.setattr(os, "walk", lambda *a, **k: reversed(list(real(*a, **k))))
    assert list_folder(tmp_path).items == expected


def test_image_files_have_the_order_of_a_class_folder(tmp_path):
    touch_tree(tmp_path, *PETS, "cover.jpg", "notes.txt", ".hidden/1.jpg", "cat/sub/3.jpg")
    files = [path.relative_to(tmp_path).as_posix() for path in image_files(tmp_path)]
    assert files == ["cover.jpg", "cat/1.jpg", "cat/2.PNG", "cat/sub/3.jpg", *PETS[2:]]
