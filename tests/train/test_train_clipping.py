import math

import pytest
import torch

from modelfactory.train.clipping import norms_of, scale_down


@pytest.mark.parametrize("limit", [0.1, 1.0, 3.0, 10.0])
def test_to_the_bit_as_torch_clips(limit: float) -> None:
    torch.manual_seed(0)
    drawn = [torch.randn(3, 4), torch.randn(7)]
    parameters = [torch.nn.Parameter(torch.zeros_like(each)) for each in drawn]
    for parameter, gradient in zip(parameters, drawn, strict=True):
        parameter.grad = gradient.clone()
    norm = torch.nn.utils.get_total_norm(drawn)
    scale_down(drawn, norm, limit)
    torch.testing.assert_close(torch.nn.utils.clip_grad_norm_(parameters, limit), norm, rtol=0, atol=0)
    for parameter, gradient in zip(parameters, drawn, strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(gradient, parameter.grad, rtol=0, atol=0)


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_norm_that_is_not_finite_is_not_hidden(broken: float) -> None:
    gradients = [torch.ones(2), torch.tensor([broken])]
    scale_down(gradients, torch.nn.utils.get_total_norm(gradients), 1.0)
    assert not torch.isfinite(gradients[1]).any()


@pytest.mark.parametrize("shape", [(), (3,), (2_048, 2_048), (4, 1, 5), (1, 9_999), (0, 3)])
def test_norms_are_those_of_float64(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    drawn = [torch.randn(shape), torch.ones(2)]
    wanted = torch.stack([each.double().norm() for each in drawn]).float()
    torch.testing.assert_close(norms_of(drawn), wanted, rtol=2e-6, atol=0)
