import pytest
from damage import save_small


@pytest.fixture(scope="session")
def pristine(tmp_path_factory):
    """A small checkpoint: content by file name."""
    folder = save_small(tmp_path_factory.mktemp("pristine") / "c")
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def checkpoint(tmp_path, pristine):
    """A folder with that checkpoint, to be damaged."""
    folder = tmp_path / "c"
    folder.mkdir()
    for name, content in pristine.items():
        (folder / name).write_bytes(content)
    return folder
