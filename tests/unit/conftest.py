"""What several unit tests share. (I/O)"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit import written


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoints that the real libraries wrote; a test harms copies only."""
    return written.unpack(tmp_path_factory.mktemp("written"))
