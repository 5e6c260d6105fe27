import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peerdg.data import parallel as module
from peerdg.data.parallel import BlockDigest, digest


@pytest.fixture(autouse=True, scope="module")
def small_blocks():
    before, module.BLOCK = module.BLOCK, 64
    yield
    module.BLOCK = before


@settings(max_examples=50)
@given(st.lists(st.binary(max_size=200), min_size=1, max_size=5).filter(any))
def test_pieces_give_the_digest_of_the_whole(pieces):
    streamed = BlockDigest()
    for piece in pieces:
        streamed.update(memoryview(piece))
    assert streamed.hexdigest() == digest(memoryview(b"".join(pieces)))


def test_it_is_the_digest_of_the_digests_of_the_blocks():
    data = np.arange(150, dtype=np.uint8)
    parts = [hashlib.sha256(data[i : i + 64].tobytes()).digest() for i in (0, 64, 128)]
    assert digest(data.data) == hashlib.sha256(b"".join(parts)).hexdigest()


def test_the_shape_of_an_array_does_not_matter():
    data = np.arange(120, dtype=np.uint8)
    assert digest(data.reshape(2, 3, 20).data) == digest(data.data)
