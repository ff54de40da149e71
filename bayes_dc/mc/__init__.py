"""Monte Carlo prediction."""

from bayes_dc.mc.convergence import Convergence, ConvergenceRow, convergence
from bayes_dc.mc.engine import MonteCarloEngine
from bayes_dc.mc.join import join_predictions
from bayes_dc.mc.predict import predict_with_uncertainty
from bayes_dc.mc.prediction import Prediction
from bayes_dc.mc.temper import temper

__all__ = [
    "Convergence",
    "ConvergenceRow",
    "MonteCarloEngine",
    "Prediction",
    "convergence",
    "join_predictions",
    "predict_with_uncertainty",
    "temper",
]
