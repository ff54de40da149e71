"""Plain torch networks; ``bayes_dc.convert`` makes them Bayesian."""

from bayes_dc.models.lenet import cnn, lenet5
from bayes_dc.models.mlp import mlp
from bayes_dc.models.resnet import resnet18, resnet20
from bayes_dc.models.vgg import vgg16_bn

__all__ = ["cnn", "lenet5", "mlp", "resnet18", "resnet20", "vgg16_bn"]
