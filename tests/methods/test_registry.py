import subprocess
import sys

import pytest

from peerdg.errors import ConfigError
from peerdg.methods.registry import implementation_of, method_names, settings_of, summary_of


@pytest.mark.parametrize("name", method_names())
def test_every_method_has_settings_a_summary_and_the_protocol(name):
    assert summary_of(name)
    settings_of(name)()
    kind = implementation_of(name)
    for part in ("loss", "start_epoch", "end_epoch", "deployed", "evaluated_networks"):
        assert hasattr(kind, part)


def test_an_unknown_method_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match="Unknown method 'pear'") as error:
        settings_of("pear")
    assert "'peer'" in error.value.hint


def test_names_are_known_without_importing_torch():
    code = (
        "import sys; from peerdg.methods.registry import method_names; "
        "method_names(); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-I", "-c", code], check=False).returncode == 0
