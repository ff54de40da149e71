"""Random models: programs of operations on vectors, images and tokens, with layers that draw masks.

``random_model(number)`` makes a model and says whether it mixes rows, in which case a plan must be
refused. Everything follows from the number.
"""

import random

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayes_dc import DropConnectConv2d, DropConnectLinear

CLASSES = 3


class RandomModel(nn.Module):
    """Runs a program: functions of one or two earlier results."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.layers = nn.ModuleList()
        self.tensors = nn.ParameterList()
        self.program = []
        self.mixes = False

    def forward(self, x):
        made = [x]
        for function, reads in self.program:
            made.append(function(*[made[i] for i in reads]))
        return made[-1]

    def layer(self, module):
        self.layers.append(module)
        return module

    def tensor(self, *shape):
        self.tensors.append(nn.Parameter(torch.randn(*shape) * 0.5))
        return self.tensors[-1]


class Generator:
    """Chooses operations by the shapes at hand."""

    def __init__(self, number):
        self.draw = random.Random(number)
        torch.manual_seed(number)
        kind = self.draw.choice(["vector", "image", "tokens"])
        self.shape = {
            "vector": (self.draw.choice([4, 6]),),
            "image": (self.draw.choice([1, 3]), 6, 6),
            "tokens": (self.draw.choice([3, 4]), 4),
        }[kind]
        self.model = RandomModel(kind)
        self.shapes = [self.shape]
        self.drawn = False

    def put(self, function, reads, shape):
        self.model.program.append((function, reads))
        self.shapes.append(shape)

    def same(self, shape):
        return [i for i, s in enumerate(self.shapes) if s == shape]

    def generate(self):
        for _ in range(self.draw.randint(3, 8)):
            self.add(self.latest())
        if self.draw.random() < 0.12:
            self.mix(self.latest())
        self.finish()
        self.randomise()
        return self.model.eval()

    def latest(self):
        """Mostly the last result, sometimes an earlier one."""
        last = len(self.shapes) - 1
        return last if self.draw.random() < 0.7 else self.draw.randint(0, last)

    def randomise(self):
        """BatchNorm with statistics that are not 0 and 1."""
        for module in self.model.modules():
            if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2)
                nn.init.normal_(module.weight, 1, 0.3)
                nn.init.normal_(module.bias)

    # -- operations on any shape -------------------------------------------------------------------

    def add(self, at):
        shape = self.shapes[at]
        own = {1: self.on_vector, 2: self.on_tokens, 3: self.on_image}[len(shape)]
        self.draw.choice([self.on_any, own, own])(at, shape)

    def on_any(self, at, shape):
        other = self.draw.choice(self.same(shape))
        number = self.draw.choice([0.5, 2.0, -1.5])
        choices = [
            (lambda x: F.relu(x), [at]),
            (lambda x: F.gelu(x), [at]),
            (lambda x: torch.tanh(x), [at]),
            (lambda x: torch.sigmoid(x), [at]),
            (lambda x: F.silu(x), [at]),
            (lambda x: x.clamp(-0.5, 1.0), [at]),
            (lambda x: x * number + 1, [at]),
            (lambda x: (number - x) / 3, [at]),
            (lambda x: torch.where(x > 0, x, 0.1 * x), [at]),
            (lambda x: F.relu_(x), [at]),
            (lambda x: x.mul_(number), [at]),
            (lambda x: x.clone().add_(1), [at]),
            (lambda x, y: x + y, [at, other]),
            (lambda x, y: x - number * y, [at, other]),
            (lambda x, y: x * torch.sigmoid(y), [at, other]),
            (lambda x, y: x.add_(y), [at, other]),
            (lambda x, y: torch.cat([x, y], 1), [at, other]),
            (lambda x, y: torch.stack([x, y], 1).mean(1), [at, other]),
            (lambda x: F.dropout(x, 0.25), [at]),
            (nn.functional.leaky_relu, [at]),
            (lambda x: x - x.mean(1, keepdim=True), [at]),
            (lambda x: x.flip(1), [at]),
            (lambda x: torch.zeros_like(x) + x, [at]),
            (lambda x: x + x.new_ones(x.shape[0], *shape), [at]),
        ]
        function, reads = self.draw.choice(choices)
        is_cat = len(reads) == 2 and function is choices[16][0]
        self.put(function, reads, (shape[0] * 2, *shape[1:]) if is_cat else shape)
        if self.draw.random() < 0.25:
            p = self.draw.choice([0.2, 0.5])
            self.drawn = True
            module = nn.Dropout(p, inplace=self.draw.random() < 0.3)
            self.put(self.model.layer(module), [len(self.shapes) - 1], self.shapes[-1])

    # -- vectors -----------------------------------------------------------------------------------

    def linear(self, k, n):
        """Plain or DropConnect."""
        if self.draw.random() < 0.5:
            return self.model.layer(nn.Linear(k, n, bias=self.draw.random() < 0.7))
        scope = self.draw.choice(["row", "row", "sample", "pass"])
        gaussian = scope == "row" and self.draw.random() < 0.2
        return self.model.layer(
            DropConnectLinear(
                k,
                n,
                bias=self.draw.random() < 0.7,
                p=self.draw.choice([0.0, 0.25, 0.5, 0.3]),
                scope=scope,
                scale=self.draw.choice(["inverted", "none"]),
                sampler="gaussian" if gaussian else "bernoulli",
            )
        )

    def on_vector(self, at, shape):
        (k,) = shape
        n = self.draw.choice([4, 6])
        choices = [
            (self.linear(k, n), (n,)),
            (self.linear(k, n), (n,)),
            (self.model.layer(nn.LayerNorm(k)), shape),
            (self.model.layer(nn.BatchNorm1d(k)), shape),
            (lambda x: x.softmax(1), shape),
            (lambda x: x.log_softmax(-1), shape),
            (lambda x: F.normalize(x, dim=1), shape),
            (lambda x: x.t().relu().t(), shape),
            (lambda x: torch.cat([x, x.new_zeros(x.shape[0], 2)], 1), (k + 2,)),
            (lambda x: x.unsqueeze(1).expand(-1, 3, -1).clone(), (3, k)),
            (lambda x: x.amax(1, keepdim=True) + x, shape),
        ]
        if k >= 4:
            choices.append((lambda x: x[:, 1 : k - 1].contiguous(), (k - 2,)))
            choices.append((lambda x: x[:, : k - 1], (k - 1,)))
        if k % 2 == 0:
            choices.append((lambda x: x.view(x.shape[0], 2, k // 2), (2, k // 2)))
            choices.append((lambda x: x.chunk(2, 1)[0] * x.chunk(2, 1)[1], (k // 2,)))
        function, out = self.draw.choice(choices)
        self.put(function, [at], out)

    # -- tokens ------------------------------------------------------------------------------------

    def on_tokens(self, at, shape):
        length, e = shape
        n = self.draw.choice([4, 6])
        first = self.model.tensor(1, 1, e)
        flat, lead = self.model.layer(nn.Linear(e, n)), self.model.layer(nn.Linear(e, n))
        query, key = self.model.layer(nn.Linear(e, e)), self.model.layer(nn.Linear(e, e))
        heads = 2 if e % 2 == 0 else 1

        def attention(x):
            q, k = query(x), key(x)
            return (q @ k.transpose(1, 2) * e**-0.5).softmax(-1) @ x

        def fused(x):
            parts = [
                t.view(x.shape[0], length, heads, e // heads).transpose(1, 2)
                for t in (query(x), key(x), x)
            ]
            y = F.scaled_dot_product_attention(*parts)
            return y.transpose(1, 2).reshape(x.shape[0], length, e)

        choices = [
            (self.linear(e, n), (length, n)),
            (self.linear(e, n), (length, n)),
            (self.model.layer(nn.LayerNorm(e)), shape),
            (lambda x: x.transpose(1, 2).contiguous(), (e, length)),
            (lambda x: x.transpose(1, 2), (e, length)),
            (lambda x: x.mean(1), (e,)),
            (lambda x: x[:, 0], (e,)),
            (lambda x: x[:, -1], (e,)),
            (lambda x: x.flatten(1), (length * e,)),
            (lambda x: torch.cat([first.expand(x.shape[0], -1, -1), x], 1), (length + 1, e)),
            (lambda x: flat(x.reshape(-1, e)).view(-1, length, n), (length, n)),
            (lambda x: lead(x.transpose(0, 1)).transpose(0, 1), (length, n)),
            (
                lambda x: (
                    lead(x.transpose(0, 1).reshape(-1, e)).view(length, -1, n).transpose(0, 1)
                ),
                (length, n),
            ),
            (attention, shape),
            (fused, shape),
            (lambda x: x.softmax(-1), shape),
            (lambda x: x + x[:, :1], shape),
        ]
        function, out = self.draw.choice(choices)
        self.put(function, [at], out)

    # -- images ------------------------------------------------------------------------------------

    def conv(self, c, n, **options):
        """Plain or DropConnect."""
        bias = self.draw.random() < 0.7
        if self.draw.random() < 0.5:
            return self.model.layer(nn.Conv2d(c, n, 3, padding=1, bias=bias, **options))
        p, scope = self.draw.choice([0.0, 0.25, 0.5]), self.draw.choice(["sample", "pass"])
        scale = self.draw.choice(["inverted", "none"])
        return self.model.layer(
            DropConnectConv2d(
                c, n, 3, padding=1, bias=bias, p=p, scope=scope, scale=scale, **options
            )
        )

    def on_image(self, at, shape):
        c, h, w = shape
        n = self.draw.choice([2, 4])
        choices = [
            (self.conv(c, n), (n, h, w)),
            (self.conv(c, n), (n, h, w)),
            (self.conv(c, c, groups=c), shape),
            (self.model.layer(nn.BatchNorm2d(c)), shape),
            (self.model.layer(nn.Dropout2d(0.3)), shape),
            (self.model.layer(nn.GroupNorm(1, c)), shape),
            (lambda x: x.flatten(2).transpose(1, 2), (h * w, c)),
            (lambda x: x.mean((2, 3)), (c,)),
            (lambda x: x.flatten(1), (c * h * w,)),
            (lambda x: F.adaptive_avg_pool2d(x, 1).flatten(1), (c,)),
            (lambda x: x.permute(0, 2, 3, 1).relu().permute(0, 3, 1, 2), shape),
            (lambda x: x[:, :1] + x, shape),
            (lambda x: x * torch.sigmoid(x.mean((2, 3), keepdim=True)), shape),
            (lambda x: F.pad(x, (0, 1, 1, 0))[:, :, :h, :w], shape),
        ]
        if h % 2 == 0 and h > 2:
            half = (h // 2, w // 2)
            choices += [
                (lambda x: F.max_pool2d(x, 2), (c, *half)),
                (lambda x: F.avg_pool2d(x, 2), (c, *half)),
                (lambda x: F.max_pool2d(x, 3, 2, 1), (c, *half)),
                (self.conv(c, n, stride=2), (n, *half)),
            ]
        function, out = self.draw.choice(choices)
        self.put(function, [at], out)
        if self.draw.random() < 0.3 and len(out) == 3:
            self.put(self.model.layer(nn.BatchNorm2d(out[0])), [len(self.shapes) - 1], out)
            self.put(lambda x: F.relu(x), [len(self.shapes) - 1], out)

    # -- what a plan must refuse -------------------------------------------------------------------

    def mix(self, at):
        shape = self.shapes[at]
        flat = shape[0]
        for size in shape[1:]:
            flat *= size

        def transposed(x: Tensor) -> Tensor:
            y = x.flatten(1)
            return y.t().contiguous().view(x.shape)

        choices = [
            lambda x: x.softmax(0),
            lambda x: x - x.mean(0),
            lambda x: x - x.mean(0, keepdim=True),
            lambda x: x + x[:1],
            lambda x: x.flip(0),
            lambda x: x.cumsum(0),
            lambda x: x.roll(1, 0),
            lambda x: torch.cat([x, x])[: len(x)],
            lambda x: torch.cat([x[1:], x[:1]]),
            lambda x: x / len(x),
            lambda x: x * torch.arange(len(x), device=x.device).view(-1, *[1] * len(shape)),
            lambda x: (x.flatten(1) @ x.flatten(1).t() @ x.flatten(1)).view(x.shape),
            lambda x: x.sort(0).values,
            lambda x: F.layer_norm(x, x.shape),
            lambda x: x.mean() + x,
            transposed,
        ]
        self.put(self.draw.choice(choices), [at], shape)
        # What follows keeps it: the next operation reads the last result.
        self.model.mixes = True
        self.drawn = True
        self.put(lambda x: F.dropout(x, 0.5), [len(self.shapes) - 1], shape)

    def finish(self):
        at = len(self.shapes) - 1
        shape = self.shapes[at]
        if len(shape) == 3:
            self.put(lambda x: x.mean((2, 3)), [at], shape[:1])
        elif len(shape) == 2:
            self.put(lambda x: x.mean(1), [at], shape[1:])
        (k,) = self.shapes[-1]
        plain = self.drawn and self.draw.random() < 0.3
        head = nn.Linear(k, CLASSES) if plain else DropConnectLinear(k, CLASSES, p=0.5)
        self.put(self.model.layer(head), [len(self.shapes) - 1], (CLASSES,))


def random_model(number):
    """A model, its input shape without rows, and whether it mixes rows."""
    generator = Generator(number)
    model = generator.generate()
    return model, generator.shape, model.mixes
