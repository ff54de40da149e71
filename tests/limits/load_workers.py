"""A data set whose samples are predictions: its workers run the CPU kernels."""

import torch
from limit_cases import every_layer, folded, inputs
from torch.utils.data import Dataset


class Predicted(Dataset):
    """Mean prediction of each input, made by whoever asks."""

    def __init__(self, rows):
        self.x = inputs(rows)
        self.model = every_layer()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, row):
        got = folded(self.model, self.x[row : row + 1], sample_ids=torch.tensor([row]))
        return got.mean[0]
