import pytest
import torch
from transformers.models.glm5_next.configuration_glm5_next import Glm5NextTextConfig
from transformers.models.glm5_next.modeling_glm5_next import Glm5NextTextHyperConnection

import text_generation_kernels as kernels


@pytest.mark.parametrize("streams", [1, 3, 4])
def test_streams_are_mixed_by_a_doubly_stochastic_matrix(streams: int) -> None:
    torch.manual_seed(0)
    size = (streams + 2) * streams
    mixes, base, scale = torch.randn(5, size), torch.randn(size), torch.randn(3)
    into, back = torch.empty(5, 1, streams), torch.empty(5, streams, streams + 1)
    kernels.stream_coefs(mixes, base, scale, 1e-6, 50, into, back)
    comb = back[:, :, :streams]
    torch.testing.assert_close(comb.sum(1), torch.ones(5, streams), atol=1e-3, rtol=0)
    torch.testing.assert_close(comb.sum(2), torch.ones(5, streams), atol=1e-3, rtol=0)
    assert (comb >= 0).all()


def test_is_what_transformers_computes() -> None:
    """Of a module with random weights, whose streams have length 1, so that its norm changes nothing."""
    torch.manual_seed(0)
    config = Glm5NextTextConfig(hidden_size=8, hc_mult=4, hc_eps=1e-3, hc_sinkhorn_iters=3, num_hidden_layers=4)
    module = Glm5NextTextHyperConnection(config)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    streams = torch.randn(1, 6, 4, 8)
    mixes = torch.nn.functional.linear(module.input_norm(streams.flatten(2)), module.fn)[0].detach()
    into, back = torch.empty(6, 1, 4), torch.empty(6, 4, 5)
    kernels.stream_coefs(mixes, module.base.detach(), module.scale.detach(), 1e-3, 3, into, back)
    post, comb, read = module(streams)
    torch.testing.assert_close(back[:, :, 4], post[0])
    torch.testing.assert_close(back[:, :, :4], comb[0].transpose(1, 2))
    torch.testing.assert_close((into @ streams[0])[:, 0], read[0])
