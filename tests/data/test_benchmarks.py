import subprocess
import sys

import pytest

from peerdg.data.benchmarks import BENCHMARKS, DigitsMiniSettings, benchmark
from peerdg.errors import DataError


def test_listing_benchmarks_does_not_import_torch():
    script = "import sys, peerdg.data.benchmarks; sys.exit('torch' in sys.modules)"
    path = "import sys; sys.path[:0] = " + repr(sys.path) + "; "
    assert subprocess.run([sys.executable, "-I", "-c", path + script]).returncode == 0


def test_loads_through_the_registry():
    splits = benchmark("digits-mini").load(DigitsMiniSettings(train=10), root=None, targets=["uci"])
    assert (len(splits.train), list(splits.targets)) == (10, ["uci"])


@pytest.mark.parametrize("name", [name for name, info in BENCHMARKS.items() if info.needs_root])
def test_a_folder_without_the_source_is_rejected_as_in_load(name, tmp_path):
    info = benchmark(name)
    settings = info.settings()
    (tmp_path / "holiday").mkdir()
    with pytest.raises(DataError) as first:
        info.require_source(settings, tmp_path)
    with pytest.raises(DataError) as second:
        info.load(settings, root=tmp_path)
    assert first.value.message == second.value.message
    assert str(tmp_path) in first.value.message
    if name != "digits":  # the source's folder alone is enough to start with
        (tmp_path / info.source).mkdir()
        info.require_source(settings, tmp_path)
