"""Monte Carlo prediction."""

from bayes_dc.mc.predict import predict_with_uncertainty
from bayes_dc.mc.prediction import Prediction

__all__ = ["Prediction", "predict_with_uncertainty"]
