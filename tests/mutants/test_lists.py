"""Every mutant of the lists can still be made."""

import pytest

from tests.mutants.__main__ import main


def test_every_mutant_applies_to_the_code_as_it_is(capsys: pytest.CaptureFixture[str]):
    assert main(["--check"]) == 0, capsys.readouterr().out
