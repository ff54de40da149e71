import pytest
import torch
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


@pytest.fixture(autouse=True)
def one_thread():
    """Threads of a small network cost more than they save, and forks have none of them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
