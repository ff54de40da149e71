"""How much memory the tensors of a computation hold."""

import weakref

from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


class LiveBytes(TorchDispatchMode):
    """Bytes of the storages of all living tensors made inside, and their peak.

    Views of the tensors given are not counted.
    """

    def __init__(self, *known):
        super().__init__()
        self.live = self.peak = 0
        self._owners = {tensor.untyped_storage().data_ptr(): 1 for tensor in known}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in pytree.tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._hold(tensor.untyped_storage(), tensor)
        return result

    def _hold(self, storage, tensor):
        place, size = storage.data_ptr(), storage.nbytes()
        if not self._owners.get(place):
            self.live += size
            self.peak = max(self.peak, self.live)
        self._owners[place] = self._owners.get(place, 0) + 1
        weakref.finalize(tensor, self._let_go, place, size)

    def _let_go(self, place, size):
        self._owners[place] -= 1
        if not self._owners[place]:
            self.live -= size
