import sys

import torch

from peerdg.models.meta_features import disable_compile
from tests.reliability.processes import run as run_process


@disable_compile
def doubled(x: torch.Tensor) -> tuple[torch.Tensor, bool]:
    return 2 * x, torch.compiler.is_compiling()


def test_it_is_the_function_and_is_never_compiled():
    x = torch.arange(3.0)
    compiled = torch.compile(lambda x: doubled(x + 1), backend="eager")
    for function in (lambda x: doubled(x + 1), compiled, compiled):
        found, compiling = function(x)
        assert torch.equal(found, 2 * (x + 1)) and not compiling
    assert doubled.__name__ == "doubled"


def test_networks_are_read_without_the_import_of_the_compiler():
    code = "import sys, peerdg.models.stored; assert 'torch._dynamo' not in sys.modules"
    result = run_process([sys.executable, "-c", code])
    assert result.returncode == 0, result.stderr
