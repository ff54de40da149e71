"""Plain torch networks; ``bayes_dc.convert`` makes them Bayesian."""

from bayes_dc.models.mlp import mlp

__all__ = ["mlp"]
