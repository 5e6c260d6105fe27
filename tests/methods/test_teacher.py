"""T+RA: the loss against its equation, and frozen teachers of any width."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from peerdg.augment.policy import Policy
from peerdg.errors import ConfigError, NumericalError
from peerdg.long_work import interruptible
from peerdg.losses.barlow_twins import barlow_twins
from peerdg.methods.base import Batch
from peerdg.methods.clean import CleanImages
from peerdg.methods.teacher import Settings, Teacher
from peerdg.models.classifier import Classifier
from peerdg.run.config import resolve
from peerdg.run.prepare import build_method
from peerdg.train.source import Source
from tests.conftest import TinyEncoder, tiny_classifier, tiny_domain

SOURCE = tiny_domain(n=30)
ROWS = torch.arange(8)
BATCH = Batch(SOURCE.images[ROWS], SOURCE.labels[ROWS], seed=5)


def clean() -> CleanImages:
    return CleanImages(SOURCE.images, labels=SOURCE.labels)


def wide(dim: int = 13, *, dropout: float = 0.0) -> Classifier:
    """Make a network with another width and other classes."""
    with torch.random.fork_rng():
        torch.manual_seed(11)
        encoder = TinyEncoder(dim=dim, dropout=dropout, batch_norm=True)
        encoder.norm.running_mean.normal_()
        return Classifier(encoder, nn.Linear(dim, 2), classes=("x", "y"), mean=(0.3,) * 3)


def make(teacher: Classifier | None = None, *, images=None, **settings) -> Teacher:
    with torch.random.fork_rng():
        torch.manual_seed(7)
        return Teacher(
            tiny_classifier(),
            Settings(**{"head_dim": 4, "head_hidden": 6, "adapter_epochs": 3, **settings}),
            augment=Policy(seed=3),
            teacher=teacher,
            clean=clean() if images is None else images,
        )


def started(*args, **settings) -> Teacher:
    method = make(*args, **settings)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        method.start_epoch(0)
    return method


@pytest.mark.parametrize("adapter", ["fitted", "trained"])
@pytest.mark.parametrize("views", ["clean_aug", "aug_clean", "both_same"])
def test_its_loss_is_the_equation_written_out(adapter: str, views: str):
    """CE(x) + CE(x̄) + w BT(R(A H_T(x)), R(H(x̄))), and the two other readings of the views."""
    method = started(wide(), w=0.7, lam=0.01, adapter=adapter, views=views)
    x, y = BATCH.images, BATCH.labels
    x_bar = method.augment(x, BATCH.generator())
    guided = {"x": method.teacher.features(x) @ method.adapter.weight.T,
              "x_bar": method.teacher.features(x_bar) @ method.adapter.weight.T}  # fmt: skip
    own = {"x": method.student.features(x), "x_bar": method.student.features(x_bar)}
    pairs = {"clean_aug": [("x", "x_bar")], "aug_clean": [("x_bar", "x")],
             "both_same": [("x", "x"), ("x_bar", "x_bar")]}[views]  # fmt: skip
    project = method.projection
    regularizer = sum(barlow_twins(project(guided[a]), project(own[b]), lam=0.01) for a, b in pairs)
    ce, ce_bar = F.cross_entropy(method.student(x), y), F.cross_entropy(method.student(x_bar), y)
    terms = method.loss(BATCH)
    torch.testing.assert_close(terms["loss"], ce + ce_bar + 0.7 * regularizer)
    torch.testing.assert_close(terms["regularizer"], regularizer.detach())
    torch.testing.assert_close(terms["ce_clean"], ce.detach())
    torch.testing.assert_close(terms["ce_augmented"], ce_bar.detach())


def test_without_a_teacher_it_is_the_student_as_it_starts():
    method = started()
    before = method.teacher.features(BATCH.images)
    assert torch.equal(before, tiny_classifier().features(BATCH.images))
    with torch.no_grad():
        for parameter in method.student.parameters():
            parameter.add_(0.1)
    assert torch.equal(method.teacher.features(BATCH.images), before)


@pytest.mark.parametrize("teacher", [None, wide])
def test_the_teacher_is_never_changed(teacher):
    method = started(None if teacher is None else teacher(dropout=0.5))
    before = copy.deepcopy(method.teacher.state_dict())
    optimizer = torch.optim.SGD([p for p in method.parameters() if p.requires_grad], lr=0.5)
    for epoch in range(3):
        method.train()
        method.start_epoch(epoch)
        method.loss(BATCH)["loss"].backward()
        optimizer.step()
        method.end_epoch(epoch)
    for name, value in method.teacher.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert not any(part.training for part in method.teacher.modules())
    assert not any(parameter.requires_grad for parameter in method.teacher.parameters())


def test_the_fitted_adapter_keeps_the_features_that_separate_classes():
    """A linear head on A·H_T(x) does nearly as well as one on H_T(x), and better than at random."""
    method = started(wide(), adapter_epochs=60, adapter_lr=0.02)
    assert method.fitted and not method.adapter.weight.requires_grad
    features = method.teacher.features(SOURCE.images).detach()
    random = make(wide()).adapter.weight

    def fit(inputs: torch.Tensor) -> float:
        targets = F.one_hot(SOURCE.labels, 3).float()
        inputs = torch.cat([inputs, torch.ones(len(inputs), 1)], dim=1)
        solution = torch.linalg.lstsq(inputs, targets, driver="gelsd").solution
        return float((inputs @ solution - targets).square().mean())

    # A maps thirteen features to eight, so it must keep those that classes need.
    small = method.adapter.weight[:3] @ features.T
    assert fit((method.adapter.weight @ features.T).T) <= fit((random @ features.T).T) + 1e-6
    assert fit(small.T) < 0.22  # of a variance of 2/9 with no features at all


def test_the_adapter_is_fitted_on_each_image_with_its_own_label():
    expected = make(wide()).adapter.requires_grad_(True)
    features = wide().eval().features(SOURCE.images).detach()
    with torch.random.fork_rng():
        torch.manual_seed(1)
        fit = nn.Sequential(expected, nn.Linear(expected.out_features, 3))
        optimizer = torch.optim.Adam(fit.parameters(), lr=Settings().adapter_lr)
        for _ in range(3):
            torch.randperm(len(SOURCE))  # one batch of all images, in any order
            optimizer.zero_grad()
            F.cross_entropy(fit(features), SOURCE.labels).backward()
            optimizer.step()
    torch.testing.assert_close(started(wide()).adapter.weight, expected.weight.detach())


def test_the_adapter_is_fitted_once_and_kept_with_the_state():
    method = started(wide())
    fitted = method.adapter.weight.clone()
    method.start_epoch(0)
    assert torch.equal(method.adapter.weight, fitted)
    other = make(wide())
    assert not torch.equal(other.adapter.weight, fitted)
    other.load_state_dict(method.state_dict())
    other.start_epoch(0)
    assert torch.equal(other.adapter.weight, fitted)


def test_an_interrupted_fit_changes_nothing():
    method = make(wide())
    before = copy.deepcopy(method.state_dict())

    class Stop(Exception):
        pass

    def give_up(label: str, share: float) -> None:
        seen["parts"] += 1
        if seen["parts"] == 4:  # after the features, inside the passes
            raise Stop

    seen = {"parts": 0}
    with pytest.raises(Stop), interruptible(give_up):
        method.start_epoch(0)
    for name, value in method.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_a_trained_adapter_learns_with_the_student():
    method = started(wide(), adapter="trained")
    method.loss(BATCH)["loss"].backward()
    assert method.adapter.weight.grad.abs().max() > 0
    assert set(method.adapter.parameters()) <= set(method.optimizers()["main"].groups[0].parameters)
    with pytest.raises(ConfigError, match="no gradient"):
        Settings(adapter="trained", head_grad_target=False)


def test_a_diverged_fit_is_a_numerical_error():
    teacher = wide()
    teacher.encoder.fc.bias.data.fill_(float("inf"))
    with pytest.raises(NumericalError, match="adapter"):
        started(teacher)


def test_an_adapter_cannot_be_fitted_without_labels():
    with pytest.raises(ConfigError, match="13 to the student's 8"):
        make(wide(), images=SOURCE.images)
    make(wide(), images=SOURCE.images, adapter="trained")
    make(tiny_classifier(seed=1), images=SOURCE.images)


def test_features_of_clean_images_are_looked_up_and_are_the_same():
    with_table, without = started(wide()), started(wide(), cache_features=False)
    known = Batch(BATCH.images, BATCH.labels, index=ROWS, seed=5)
    torch.testing.assert_close(with_table.loss(known)["loss"], without.loss(known)["loss"])
    table = with_table.teacher_features.table
    torch.testing.assert_close(table[ROWS], without.teacher.features(BATCH.images))
    assert without.teacher_features.table is None


def test_with_a_mean_of_snapshots_it_is_peer_with_a_teacher():
    """The average of the student is deployed, and the teacher still guides."""
    config = resolve(
        {"method": "teacher", "teacher": {"k": 1}, "train": {"batch_size": 8, "epochs": 2},
         "average": {"kind": ["snapshots"]}}
    )  # fmt: skip
    method = build_method(config, tiny_classifier(), Source(SOURCE))
    assert method.deployed_name == "snapshots"
    assert method.deployed is not method.teacher


def test_without_its_regularizer_the_teacher_is_not_evaluated():
    method = started(wide(), regularizer="none")
    method.teacher.encoder.conv.weight.data.fill_(float("nan"))
    assert method.loss(BATCH)["loss"].isfinite()
    assert Settings(regularizer="none").is_baseline
