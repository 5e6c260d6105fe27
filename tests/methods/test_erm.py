import torch
import torch.nn.functional as F

from peerdg.augment.policy import Policy
from peerdg.methods.base import Batch
from peerdg.methods.erm import ERM
from peerdg.methods.randaugment import AugmentedERM, Settings
from tests.conftest import tiny_classifier, tiny_domain

SOURCE = tiny_domain()
BATCH = Batch(SOURCE.images, SOURCE.labels, seed=4)


def test_erm_is_cross_entropy_on_clean_images():
    model = tiny_classifier()
    expected = F.cross_entropy(model(SOURCE.images), SOURCE.labels)
    torch.testing.assert_close(ERM(model).loss(BATCH)["loss"], expected)


def test_randaugment_is_the_sum_over_clean_and_augmented_images():
    model, policy = tiny_classifier(), Policy(seed=1)
    method = AugmentedERM(model, augment=policy)
    x_bar = policy(SOURCE.images, BATCH.generator())
    clean, augmented = (F.cross_entropy(model(x), SOURCE.labels) for x in (SOURCE.images, x_bar))
    terms = method.loss(BATCH)
    torch.testing.assert_close(terms["loss"], clean + augmented)
    torch.testing.assert_close(terms["ce_clean"], clean.detach())
    torch.testing.assert_close(terms["ce_augmented"], augmented.detach())
    assert abs(clean - augmented) > 1e-4


def test_randaugment_redraws_its_policy_every_k_epochs():
    method = AugmentedERM(tiny_classifier(), Settings(k=2), augment=Policy(seed=1))
    drawn = [method.start_epoch(epoch)["policy"] for epoch in range(6)]
    assert drawn[0] == drawn[1] and drawn[2] == drawn[3]
    assert drawn == [Policy(seed=1).redraw(epoch // 2) for epoch in range(6)]


def test_the_trained_network_is_deployed_and_evaluated():
    model = tiny_classifier()
    for method in (ERM(model), AugmentedERM(model)):
        assert method.deployed is model
        assert list(method.evaluated_networks.values()) == [model]
