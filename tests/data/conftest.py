from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def session_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def cache(session_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One cache for the whole session, so that digits-mini is made once; never the user's own."""
    monkeypatch.setenv("PEERDG_CACHE", str(session_cache))
    return session_cache
