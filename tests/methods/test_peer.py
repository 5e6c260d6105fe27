import copy
import itertools
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import update_bn
from torch.utils.data import DataLoader, TensorDataset

from peerdg.augment.policy import Policy
from peerdg.averages.snapshots import Snapshots
from peerdg.errors import ConfigError, DataError, PeerdgWarning
from peerdg.losses.barlow_twins import barlow_twins
from peerdg.methods.base import Batch
from peerdg.methods.clean import CleanImages
from peerdg.methods.peer import PEER, Settings
from peerdg.methods.randaugment import AugmentedERM
from peerdg.methods.randaugment import Settings as RandAugSettings
from peerdg.models.backbones import build_classifier
from peerdg.models.statistics import recompute_statistics
from tests.conftest import tiny_classifier, tiny_domain

SOURCE = tiny_domain(n=32)
ROWS = torch.arange(len(SOURCE))
CLEAN = SOURCE.images
LARGE = tiny_domain(n=600)  # its clean images come in three chunks


def make(seed=0, *, augment=None, clean=None, batch_norm=False, **settings):
    settings = {"k": 2, "head_dim": 4, "head_hidden": 6, **settings}
    torch.manual_seed(7)  # for R
    return PEER(
        tiny_classifier(seed=seed, batch_norm=batch_norm),
        Settings(**settings),
        augment=augment or Policy(seed=3),
        clean=clean,
    )


def batches(epoch, size=8, source=SOURCE):
    order = torch.randperm(len(source), generator=torch.Generator().manual_seed(epoch)).split(size)
    for step, rows in enumerate(order):
        yield Batch(source.images[rows], source.labels[rows], index=rows, seed=100 * epoch + step)


def train(
    method,
    epochs=4,
    *,
    lr=0.05,
    source=SOURCE,
    size=8,
    bf16=False,
    after_step=lambda: None,
    after_epoch=lambda: None,
):
    optimizer = torch.optim.Adam([p for p in method.parameters() if p.requires_grad], lr=lr)
    for epoch in range(epochs):
        method.train()
        method.start_epoch(epoch)
        for batch in batches(epoch, size, source=source):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
                terms = method.loss(batch)
            terms["loss"].backward()
            optimizer.step()
            after_step()
        method.end_epoch(epoch)
        after_epoch()
    return method


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def features_of(peer, rows, source=SOURCE):
    """Look up rows in the table of features."""
    features = peer.task_features.features(Batch(source.images[rows], source.labels[rows], rows))
    assert peer.task_features.table is not None
    return features


def test_loss_is_equation_3_written_out():
    peer = make(w=0.7, lam=0.01)
    x, y = SOURCE.images[:8], SOURCE.labels[:8]
    batch = Batch(x, y, seed=5)
    peer.start_epoch(0)
    x_bar = peer.augment(x, batch.generator())
    expected = (
        F.cross_entropy(peer.proxy(x), y)
        + F.cross_entropy(peer.proxy(x_bar), y)
        + 0.7
        * barlow_twins(
            peer.projection(peer.task.features(x)),
            peer.projection(peer.proxy.features(x_bar)),
            lam=0.01,
        )
    )
    terms = peer.loss(batch)
    torch.testing.assert_close(terms["loss"], expected)
    for name, view in (("ce_clean", x), ("ce_augmented", x_bar)):
        torch.testing.assert_close(terms[name], F.cross_entropy(peer.proxy(view), y).detach())
    assert abs(terms["ce_clean"] - terms["ce_augmented"]) > 1e-4
    parts = terms["ce_clean"] + terms["ce_augmented"] + 0.7 * terms["regularizer"]
    torch.testing.assert_close(terms["loss"].detach(), parts)


def test_task_weights_are_the_mean_of_the_snapshots_after_every_k_epochs():
    peer, snapshots, seen = make(k=2), [], []

    def keep():
        seen.append(weights(peer.proxy))
        if len(seen) % 2 == 0:
            snapshots.append(seen[-1])
        expected = torch.stack(snapshots).mean(0) if snapshots else start
        assert (weights(peer.task) - expected).abs().max() < 1e-6

    start = weights(peer.task)
    train(peer, epochs=7, after_epoch=keep)
    assert peer.average.count == 3


def test_without_regularizer_equals_weight_zero_bit_for_bit():
    with_zero, without = train(make(w=0.0)), train(make(regularizer="none"))
    assert torch.equal(weights(with_zero.proxy), weights(without.proxy))
    assert torch.equal(weights(with_zero.task), weights(without.task))


def test_the_proxy_without_regularizer_is_the_randaugment_baseline_bit_for_bit():
    ensemble = train(make(regularizer="none"))
    baseline = train(AugmentedERM(tiny_classifier(), RandAugSettings(k=2), augment=Policy(seed=3)))
    assert torch.equal(weights(ensemble.proxy), weights(baseline.model))


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("views", ["clean_aug", "both_same"])
def test_cached_and_recomputed_task_features_give_bitwise_equal_training(views, bf16):
    images = LARGE.images
    assert len(list(CleanImages(images))) > 1
    options = {"epochs": 3, "source": LARGE, "size": 60, "bf16": bf16}
    cached = train(make(clean=images, views=views), **options)
    recomputed = train(make(clean=images, views=views, cache_features=False), **options)
    assert cached.task_features.table is not None
    assert recomputed.task_features.table is None
    assert torch.equal(weights(cached.proxy), weights(recomputed.proxy))
    assert torch.equal(weights(cached.task), weights(recomputed.task))


def test_cached_and_recomputed_features_give_bitwise_equal_training_of_the_digits_cnn():
    """Also for a larger network: kernels may sum in another order for other batch sizes."""
    images = torch.randint(0, 256, (48, 3, 32, 32), dtype=torch.uint8)
    labels = torch.arange(48) % 10
    trained = []
    for cached in (True, False):
        torch.manual_seed(0)
        model = build_classifier("digits-cnn", classes=tuple("0123456789"))
        settings = Settings(k=1, cache_features=cached)
        peer = PEER(model, settings, augment=Policy(seed=3), clean=images)
        adam = torch.optim.Adam([p for p in peer.parameters() if p.requires_grad], lr=1e-3)
        for epoch in range(2):
            peer.start_epoch(epoch)
            for step, rows in enumerate(torch.arange(48).split(24)):
                batch = Batch(images[rows], labels[rows], index=rows, seed=10 * epoch + step)
                adam.zero_grad()
                peer.loss(batch)["loss"].backward()
                adam.step()
            peer.end_epoch(epoch)
        assert (peer.task_features.table is not None) == cached
        trained.append(peer)
    for name, value in trained[0].state_dict().items():
        assert torch.equal(value, trained[1].state_dict()[name]), name


def test_cached_features_are_those_of_their_rows_however_chunks_are_ordered():
    peer = make(clean=LARGE.images)
    peer.start_epoch(0)
    alone = [peer.task.features(image) for image in LARGE.images.split(1)]
    rows = torch.arange(len(LARGE))
    torch.testing.assert_close(features_of(peer, rows, LARGE), torch.cat(alone))


def test_features_are_never_cached_from_batches_whose_rows_are_unknown():
    loader = DataLoader(TensorDataset(SOURCE.images, SOURCE.labels), batch_size=8, shuffle=True)
    for clean in (loader, list(SOURCE.images.split(8)), [(CLEAN, SOURCE.labels)]):
        peer = make(clean=clean)
        peer.start_epoch(0)
        assert peer.task_features.clean is None
        batch = Batch(SOURCE.images[:8], SOURCE.labels[:8], index=torch.arange(8), seed=0)
        expected = make(cache_features=False)
        expected.start_epoch(0)
        assert torch.equal(peer.loss(batch)["loss"], expected.loss(batch)["loss"])


@pytest.mark.parametrize("known_rows", [True, False])
def test_features_of_all_images_are_computed_only_if_batches_know_their_rows(
    known_rows, monkeypatch
):
    passes, chunks = [], CleanImages.chunks
    monkeypatch.setattr(CleanImages, "chunks", lambda self: passes.append(1) or chunks(self))
    peer = make(clean=CLEAN, k=2)
    for epoch in range(4):
        peer.start_epoch(epoch)
        for batch in batches(epoch):
            peer.loss(batch if known_rows else replace(batch, index=None))
        peer.end_epoch(epoch)
    assert len(passes) == (2 if known_rows else 0)  # once a period


def test_loading_a_state_forgets_the_cached_features():
    peer, other = make(clean=CLEAN), make(seed=1, clean=CLEAN)
    peer.start_epoch(0)
    features_of(peer, ROWS)  # fills the table
    peer.load_state_dict(other.state_dict())
    peer.start_epoch(0)
    torch.testing.assert_close(features_of(peer, ROWS), other.task.features(SOURCE.images))


def test_include_init_averages_the_start_and_leaves_out_the_last_period():
    peer = make(include_init=True, k=2)
    snapshots = [weights(peer.proxy)]
    train(peer, epochs=6, after_epoch=lambda: snapshots.append(weights(peer.proxy)))
    expected = torch.stack([snapshots[0], snapshots[2], snapshots[4]]).mean(0)
    assert (weights(peer.task) - expected).abs().max() < 1e-6


def test_starting_an_epoch_twice_takes_one_snapshot():
    peer = make(include_init=True)
    peer.start_epoch(0)
    peer.start_epoch(0)
    assert peer.average.count == 1


def test_reset_proxy_continues_from_the_task_model_and_asks_to_clear_the_optimizer():
    peer = make(reset_proxy=True, k=1)
    optimizer = torch.optim.SGD(peer.proxy.parameters(), lr=0.1)
    for epoch in range(2):
        peer.start_epoch(epoch)
        for batch in batches(epoch):
            optimizer.zero_grad()
            peer.loss(batch)["loss"].backward()
            optimizer.step()
        result = peer.end_epoch(epoch)
        assert result.reset_optimizers == ("main",)
        assert torch.equal(weights(peer.proxy), weights(peer.task))


def test_the_policy_is_redrawn_every_k_epochs_and_reported():
    peer = make(k=3)
    drawn = [peer.start_epoch(epoch)["policy"] for epoch in range(9)]
    expected = [Policy(seed=3).redraw(epoch // 3) for epoch in range(9)]
    assert drawn == expected
    assert len({tuple(d.items()) for d in drawn}) > 1


def gradients(peer, seed=5):
    peer.zero_grad()
    peer.loss(Batch(SOURCE.images[:16], SOURCE.labels[:16], seed=seed))["loss"].backward()
    return {name for name, p in peer.named_parameters() if p.grad is not None and p.grad.any()}


def test_gradients_reach_proxy_and_head_but_never_the_task_model():
    reached = gradients(make())
    assert any(name.startswith("proxy.") for name in reached)
    assert any(name.startswith("projection.") for name in reached)
    assert not any(name.startswith("average.") for name in reached)


def test_a_frozen_head_gets_no_gradient():
    assert not any(name.startswith("projection.") for name in gradients(make(head="frozen")))


def test_the_head_has_the_requested_layers():
    for layers in (1, 2, 3):
        head = make(head_layers=layers).projection
        assert sum(isinstance(layer, nn.Linear) for layer in head.modules()) == layers


def test_without_head_features_are_compared_themselves_and_stay_finite():
    peer = make(head="none")
    assert not list(peer.projection.parameters())
    train(peer)
    assert torch.isfinite(weights(peer.proxy)).all()


def test_the_targets_branch_of_the_head_can_be_cut_off():
    both, one = make(), make(head_grad_target=False)
    gradients(both), gradients(one)
    a, b = both.projection[0].weight.grad, one.projection[0].weight.grad
    assert not torch.allclose(a, b)
    torch.testing.assert_close(both.proxy.head.weight.grad, one.proxy.head.weight.grad)


@pytest.mark.parametrize("views", ["clean_aug", "aug_clean", "both_same"])
def test_views_decide_which_image_goes_to_which_model(views):
    peer = make(views=views, head="none", w=1.0, lam=0.005)
    batch = Batch(SOURCE.images[:16], SOURCE.labels[:16], seed=1)
    x, x_bar = batch.images, peer.augment(batch.images, batch.generator())

    def bt(a, b):
        return barlow_twins(peer.task.features(a), peer.proxy.features(b))

    expected = {
        "clean_aug": bt(x, x_bar),
        "aug_clean": bt(x_bar, x),
        "both_same": bt(x, x) + bt(x_bar, x_bar),
    }[views]
    torch.testing.assert_close(peer.loss(batch)["regularizer"], expected.detach())


def test_info_nce_tells_the_proxys_augmented_image_from_the_task_models_clean_ones():
    """Compare with the softmax of cosines over the temperature, row by row."""
    peer = make(regularizer="info-nce", tau=0.3)
    with torch.no_grad():  # make the two models differ
        for p in peer.proxy.parameters():
            p.add_(torch.randn_like(p) / 4)
    batch = Batch(SOURCE.images[:6], SOURCE.labels[:6], seed=1)
    x, x_bar = batch.images, peer.augment(batch.images, batch.generator())
    peer.train()
    z_f = peer.projection(peer.task.features(x))
    z_p = peer.projection(peer.proxy.features(x_bar))
    expected = torch.zeros(())
    for i in range(6):
        cosines = torch.stack([F.cosine_similarity(z_p[i], z_f[j], dim=0) for j in range(6)])
        expected = expected - (cosines[i] / 0.3 - torch.logsumexp(cosines / 0.3, 0)) / 6
    torch.testing.assert_close(peer.loss(batch)["regularizer"], expected.detach())


def test_without_augmentation_both_views_are_the_clean_image():
    peer = PEER(tiny_classifier(), Settings(augment=False))
    terms = peer.loss(Batch(SOURCE.images, SOURCE.labels))
    assert torch.equal(terms["ce_clean"], terms["ce_augmented"])


def test_batch_normalization_treats_views_separately_unless_joined():
    images = SOURCE.images[:16]
    batch = Batch(images, SOURCE.labels[:16], seed=1)
    apart = make(batch_norm=True, clean=CLEAN, regularizer="none")
    joint = make(batch_norm=True, clean=CLEAN, regularizer="none", joint_views=True)
    apart.train(), joint.train()
    separate = F.cross_entropy(copy.deepcopy(apart.proxy)(images), batch.labels)
    torch.testing.assert_close(apart.loss(batch)["ce_clean"], separate.detach())
    assert not torch.allclose(joint.loss(batch)["ce_clean"], separate)


def test_batch_normalized_training_recalibrates_the_task_model():
    peer = train(make(batch_norm=True, clean=CLEAN, k=1), epochs=3)
    task = copy.deepcopy(peer.task)
    update_bn([CLEAN], task)  # all images are one chunk
    for ours, reference in zip(peer.task.buffers(), task.buffers(), strict=True):
        assert torch.equal(ours, reference)


@pytest.mark.parametrize("bn", ["recalibrate", "copy"])
def test_a_task_model_counts_as_recalibrated_only_if_it_is(bn):
    peer = make(batch_norm=True, clean=CLEAN, k=1, bn=bn)
    assert [*peer.needs_clean_statistics] == ["proxy", "task"]
    train(peer, epochs=1)
    assert ("task" in peer.needs_clean_statistics) == (bn != "recalibrate")
    before = copy.deepcopy(peer.task.state_dict())
    recompute_statistics(peer.task, CleanImages(CLEAN))  # no effect if already recalibrated
    equal = [torch.equal(value, before[name]) for name, value in peer.task.state_dict().items()]
    assert all(equal) == (bn == "recalibrate")


def test_calling_peer_is_its_loss():
    peer, images, labels = make(), SOURCE.images[:8], SOURCE.labels[:8]
    torch.manual_seed(1)
    expected = peer.loss(images, labels)
    torch.manual_seed(1)
    found = peer(images, labels)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("clean", [None, CLEAN])
def test_a_network_that_is_not_wrapped_is_refused_with_the_call_that_wraps_it(clean):
    network = torch.nn.Sequential(torch.nn.BatchNorm2d(3), torch.nn.Flatten())
    with pytest.raises(ConfigError, match=r"Classifier\.from_module\(network, classes="):
        PEER(network, clean=clean)
    with pytest.raises(ConfigError, match="from_module"):
        AugmentedERM(network)


def test_options_given_to_peer_are_answered_with_its_settings():
    with pytest.raises(ConfigError, match="'k'"):
        Settings(kk=2)


@pytest.mark.parametrize(
    "labels",
    [
        F.one_hot(SOURCE.labels[:8]),
        F.one_hot(SOURCE.labels[:8]).float(),
        SOURCE.labels[:7],
        torch.arange(8) % 7,
        torch.arange(8) % 3 - 1,
    ],
)
def test_labels_that_are_not_class_indices_are_refused(labels):
    for method in (make(), AugmentedERM(tiny_classifier())):
        with pytest.raises(DataError, match=r"argmax|from 0 to 2"):
            method.loss(SOURCE.images[:8], labels)


def test_labels_may_be_integers_of_any_size():
    for dtype in (torch.int32, torch.uint8):
        assert make().as_batch(CLEAN, SOURCE.labels.to(dtype)).labels.equal(SOURCE.labels)


def test_a_batch_of_one_image_needs_a_loss_without_regularizer():
    with pytest.raises(DataError, match="drop_last"):
        make().loss(SOURCE.images[:1], SOURCE.labels[:1])
    assert make(regularizer="none").loss(SOURCE.images[:1], SOURCE.labels[:1]).total.isfinite()


def test_the_state_dict_carries_the_average_and_its_count():
    peer = train(make(), epochs=4)
    other = make(seed=5)
    other.load_state_dict(peer.state_dict())
    assert other.average.count == peer.average.count == 2
    assert torch.equal(weights(other.task), weights(peer.task))


def test_a_state_with_another_k_is_refused():
    with pytest.raises(ConfigError, match="k = 2, not k = 3"):
        make(k=3).load_state_dict(make(k=2).state_dict())


def test_an_epoch_that_was_not_started_cannot_end():
    peer = make(k=1)
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"start_epoch\(3\)"):
            peer.end_epoch(3)
        peer.start_epoch(5)
    assert peer.average.count == 0


def test_deployed_warns_once_when_training_ended_before_the_first_snapshot():
    peer = train(make(k=3), epochs=2)
    with pytest.warns(PeerdgWarning, match="nothing was averaged"):
        deployed = peer.deployed
    assert torch.equal(weights(deployed), weights(make().task))  # the untrained copy
    assert peer.deployed is deployed  # without a second warning, which would be an error


@pytest.mark.parametrize("case", ["before training", "evaluated loss", "trained", "include_init"])
def test_deployed_does_not_warn_otherwise(case):
    peer = make(k=2, include_init=case == "include_init")
    if case == "evaluated loss":
        with torch.no_grad():
            peer.loss(Batch(SOURCE.images[:8], SOURCE.labels[:8]))
    elif case != "before training":
        train(peer, epochs=1 if case == "include_init" else 2)
    assert peer.deployed is peer.task is peer.evaluated_networks[peer.deployed_name]


def test_the_proxy_is_reset_only_where_the_average_was_updated():
    """Snapshots with another period: the policy is re-drawn without a reset."""
    torch.manual_seed(7)
    model = tiny_classifier()
    average = Snapshots(model, k=2)
    settings = Settings(k=1, head_dim=4, head_hidden=6, reset_proxy=True)
    peer = PEER(model, settings, augment=Policy(seed=3), average=average)
    train(peer, epochs=1)
    assert not torch.equal(weights(peer.proxy), weights(peer.task))  # no snapshot, no reset
    peer.start_epoch(1)
    assert peer.end_epoch(1).reset_optimizers == ("main",)
    assert torch.equal(weights(peer.proxy), weights(peer.task))


@pytest.mark.parametrize("average", [None, 1, 2])
def test_features_are_renewed_whenever_the_average_changes(average: int | None):
    """Also if the number of snapshots in it stays the same."""
    torch.manual_seed(7)
    model = tiny_classifier()
    peer = PEER(
        model,
        Settings(k=1, head_dim=4, head_hidden=6),
        augment=Policy(seed=3),
        average=Snapshots(model, k=1, last=average),
        clean=CLEAN,
    )
    seen = []

    def look() -> None:
        peer.start_epoch(len(seen) + 1)
        features = features_of(peer, ROWS)
        torch.testing.assert_close(features, peer.task.features(SOURCE.images))
        seen.append(features)

    train(peer, epochs=4, after_epoch=look)
    assert all(not torch.equal(a, b) for a, b in itertools.pairwise(seen))
