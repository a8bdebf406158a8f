"""Architectures are what they say, before and after they are built; scores are what the papers define."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F  # noqa: N812

from unfit.base.errors import UsageError
from unfit.base.nets import (
    MAX_PARAMETERS,
    Architecture,
    build,
    initialise,
    layers_of,
    margin,
    outputs,
    parse_architecture,
)

IMAGE = (3, 32, 32)

# Texts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "hidden", "conv", "name"),
    [
        ("1000-1000", (1000, 1000), None, "3072-1000-1000-1"),
        ("conv(3,32)-1000", (1000,), (3, 32), "conv(3,32)-1000-1"),
        (" CONV(5, 4) - 10 - 20 ", (10, 20), (5, 4), "conv(5,4)-10-20-1"),
    ],
)
def test_architectures_are_read_and_shown(text, hidden, conv, name):
    architecture = parse_architecture(text, IMAGE, 1)
    assert (architecture.hidden, architecture.conv, str(architecture)) == (hidden, conv, name)
    assert (architecture.input_shape, architecture.num_outputs) == (IMAGE, 1)


@pytest.mark.parametrize(
    "text", ["", "ten", "10-", "10--10", "10\n-x", "10-conv(3,4)", "conv(3,32)", "conv(-3,32)-10"]
)
def test_unreadable_architectures_are_shown_and_an_example_given(text):
    with pytest.raises(UsageError, match=r"cannot read the architecture .* write 1000-1000 or conv") as caught:
        parse_architecture(text, IMAGE, 1)
    assert repr(text) in str(caught.value)


@given(st.text(alphabet="0123456789-(),conv ", max_size=20))
@settings(max_examples=200, deadline=None)
def test_any_text_is_an_architecture_or_refused(text):
    try:
        architecture = parse_architecture(text, IMAGE, 1)
    except UsageError:
        return
    assert 0 < architecture.num_parameters <= MAX_PARAMETERS


@pytest.mark.parametrize("text", ["10-0", "conv(3,0)-10", "conv(0,3)-10"])
def test_a_layer_of_width_zero_is_refused(text):
    with pytest.raises(UsageError, match="has a layer of width 0; use 1 or more"):
        parse_architecture(text, IMAGE, 1)


@pytest.mark.parametrize(("kernel", "shape"), [(5, (1, 4, 9)), (5, (1, 9, 4)), (1, (3072,))])
def test_a_kernel_that_does_not_fit_the_inputs_is_refused(kernel, shape):
    with pytest.raises(UsageError, match=f"a {kernel}×{kernel} kernel does not fit inputs of shape"):
        parse_architecture(f"conv({kernel},2)-10", shape, 1)


def test_a_kernel_as_large_as_the_image_fits():
    net = build(parse_architecture("conv(5,2)-3", (1, 5, 5), 1))
    assert net(torch.zeros(4, 1, 5, 5)).shape == (4, 1)


def test_biases_are_first_or_hidden():
    with pytest.raises(UsageError, match="unknown choice of `biases` 'First'; choose one of: first, hidden"):
        parse_architecture("10", IMAGE, 1, "First")


def test_the_largest_net_is_accepted_and_one_neuron_more_refused():
    width = MAX_PARAMETERS // 3  # 1-width-1 with biases in the first layer
    assert parse_architecture(str(width), (1,), 1).num_parameters == 3 * width
    with pytest.raises(UsageError, match=f"{3 * width + 3:,} parameters; the limit is {MAX_PARAMETERS:,}"):
        parse_architecture(str(width + 1), (1,), 1)


@pytest.mark.parametrize("text", ["conv(3,1000000)-1000000", "9" * 5000])
def test_nets_that_no_memory_holds_are_refused_at_once(text):
    with pytest.raises(UsageError):
        parse_architecture(text, IMAGE, 1)


# Nets ------------------------------------------------------------------------------------------------------


@st.composite
def architectures(draw: st.DrawFn) -> Architecture:
    hidden = "-".join(map(str, draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))))
    shape = draw(st.sampled_from([(4,), (1, 3, 5), (3, 4, 4), (2, 6)]))
    if len(shape) == 3 and draw(st.booleans()):
        hidden = f"conv({draw(st.integers(1, 3))},{draw(st.integers(1, 4))})-{hidden}"
    return parse_architecture(hidden, shape, draw(st.integers(1, 4)), draw(st.sampled_from(["first", "hidden"])))


@given(architectures())
@settings(max_examples=60, deadline=None)
def test_the_built_net_is_the_described_one(architecture):
    net = build(architecture)
    layers = layers_of(net)
    assert [tuple(layer.weight.shape) for layer in layers] == architecture.layer_shapes
    assert [layer.bias is not None for layer in layers] == list(architecture.biases)
    assert sum(p.numel() for p in net.parameters()) == architecture.num_parameters
    assert {name.split(".")[0] for name in net.state_dict()} == {f"layer{i + 1}" for i in range(len(layers))}
    assert net(torch.ones(2, *architecture.input_shape)).shape == (2, architecture.num_outputs)


@given(architectures())
@settings(deadline=None)
def test_the_name_of_an_architecture_gives_it_back(architecture):
    middle = str(architecture).split("-", 0 if architecture.conv else 1)[-1].rpartition("-")[0]
    biases = "hidden" if sum(architecture.biases) > 1 else "first"
    again = parse_architecture(middle, architecture.input_shape, architecture.num_outputs, biases)
    assert again == architecture


@pytest.mark.parametrize(
    ("text", "biases", "flags"),
    [("6-5-4", "first", (True, False, False, False)), ("conv(2,3)-5-4", "hidden", (True, True, True, False))],
)
def test_biases_are_in_the_first_layer_or_in_every_layer_but_the_last(text, biases, flags):
    assert parse_architecture(text, (1, 4, 4), 2, biases).biases == flags


@pytest.mark.parametrize("text", ["6-5", "conv(2,3)-5"])
def test_the_net_is_relu_between_layers_and_nothing_after_the_last(text):
    net = initialise(parse_architecture(text, (2, 4, 4), 30, "hidden"), None, 0).double()
    h = x = torch.randn(7, 2, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for layer in layers_of(net):
        h = h.relu() if h is not x else h
        convolves = layer.weight.ndim == 4
        h = F.conv2d(h, *layer.parameters()) if convolves else F.linear(h.flatten(1), *layer.parameters())
    torch.testing.assert_close(net(x), h)
    assert (h < 0).any()  # so a last ReLU would show


@pytest.mark.parametrize(("text", "scale"), [("400-30", 1e-4), ("conv(3,200)-30", 0.3)])
def test_the_first_layer_starts_at_the_asked_scale_and_the_rest_at_the_standard_one(text, scale):
    architecture = parse_architecture(text, (3, 8, 8), 1, "hidden")
    asked, standard = initialise(architecture, scale, 5), initialise(architecture, None, 5)
    for parameter in layers_of(asked)[0].parameters():
        assert parameter.std().item() == pytest.approx(scale, rel=0.15)
        assert abs(parameter.mean().item()) < scale
    for mine, usual in zip(layers_of(asked)[1:], layers_of(standard)[1:], strict=True):
        assert torch.equal(mine.weight, usual.weight)
    for layer in layers_of(standard):
        bound = 1 / math.sqrt(layer.weight[0].numel())  # PyTorch's Kaiming: uniform, variance 1 / (3 fan-in)
        assert layer.weight.abs().max().item() <= bound
    first = layers_of(standard)[0].weight
    assert first.std().item() == pytest.approx(1 / math.sqrt(3 * first[0].numel()), rel=0.05)


@pytest.mark.parametrize("scale", [1e-4, None])
def test_a_fresh_net_depends_on_the_seed_alone(scale):
    architecture = parse_architecture("5-5", (4,), 1)
    nets = []
    for seed, elsewhere in ((3, 0), (3, 1), (4, 0)):
        torch.manual_seed(elsewhere)
        before = torch.get_rng_state()
        nets.append(torch.cat([p.flatten() for p in initialise(architecture, scale, seed).parameters()]))
        assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(nets[0], nets[1])
    assert not torch.isclose(nets[0], nets[2], rtol=1e-3).any()


def test_outputs_in_batches_are_those_of_the_whole():
    net = initialise(parse_architecture("6-5", (4,), 3), None, 0).double()
    x = torch.randn(11, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    in_batches = outputs(net, x, batch=4)
    torch.testing.assert_close(in_batches, net(x))
    assert not in_batches.requires_grad


# Margins ---------------------------------------------------------------------------------------------------

scores = st.floats(-100, 100, width=64)


@given(st.lists(st.tuples(scores, st.integers(0, 1)), min_size=1, max_size=8))
@settings(deadline=None)
def test_the_binary_margin_is_the_output_times_the_sign_of_the_label(rows):
    phi, y = torch.tensor([[phi] for phi, _ in rows]), torch.tensor([y for _, y in rows])
    assert margin(phi, y).tolist() == torch.tensor([phi if y else -phi for phi, y in rows]).tolist()


tables = st.integers(2, 5).flatmap(lambda k: st.lists(st.lists(scores, min_size=k, max_size=k), min_size=1))


@given(tables, st.data())
@settings(deadline=None)
def test_the_multiclass_margin_is_the_distance_to_the_best_other_output(rows, data):
    y = data.draw(st.lists(st.integers(0, len(rows[0]) - 1), min_size=len(rows), max_size=len(rows)))
    expected = [row[i] - max(row[:i] + row[i + 1 :]) for row, i in zip(rows, y, strict=True)]
    assert margin(torch.tensor(rows, dtype=torch.float64), torch.tensor(y)).tolist() == expected


@given(st.lists(st.tuples(scores, scores, st.integers(0, 1)), min_size=1, max_size=8))
@settings(deadline=None)
def test_two_outputs_have_the_binary_margin_of_their_difference(rows):
    phi, y = torch.tensor([row[:2] for row in rows], dtype=torch.float64), torch.tensor([row[2] for row in rows])
    assert torch.equal(margin(phi, y), margin(phi[:, 1:] - phi[:, :1], y))


def test_the_margin_has_a_gradient_at_the_own_and_the_best_other_output_only():
    phi = torch.tensor([[1.0, 3.0, 2.0], [0.0, -1.0, 5.0]], requires_grad=True)
    (gradient,) = torch.autograd.grad(margin(phi, torch.tensor([1, 0])).sum(), phi)
    assert gradient.tolist() == [[0.0, 1.0, -1.0], [1.0, 0.0, -1.0]]
