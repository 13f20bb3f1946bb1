"""Messages of the contract become dataclasses field for field."""

from text_generation_server.engine import requests as r
from text_generation_server.pb import generate_pb2 as pb
from text_generation_server.service.convert import batch_from_pb


def test_every_sampling_parameter_arrives() -> None:
    # Values that float32 holds exactly.
    message = pb.Request(
        id=1,
        input_ids=[5],
        parameters=pb.NextTokenChooserParameters(
            temperature=0.5,
            top_k=3,
            top_p=0.75,
            typical_p=0.25,
            do_sample=True,
            seed=2**64 - 1,
            repetition_penalty=1.5,
            frequency_penalty=-0.5,
            watermark=True,
            presence_penalty=0.125,
            penalize_output_only=True,
            min_p=0.0625,
            logit_bias=[pb.LogitBias(id=7, bias=-100.0), pb.LogitBias(id=0, bias=1.5)],
        ),
        stopping_parameters=pb.StoppingCriteriaParameters(max_new_tokens=9, ignore_eos_token=True, min_new_tokens=4),
    )
    (request,) = batch_from_pb(pb.Batch(id=2, requests=[message])).requests
    assert request.parameters == r.NextTokenChooserParameters(
        temperature=0.5,
        top_k=3,
        top_p=0.75,
        typical_p=0.25,
        do_sample=True,
        seed=2**64 - 1,
        repetition_penalty=1.5,
        frequency_penalty=-0.5,
        watermark=True,
        presence_penalty=0.125,
        penalize_output_only=True,
        min_p=0.0625,
        logit_bias=((7, -100.0), (0, 1.5)),
    )
    assert request.stopping_parameters == r.StoppingCriteriaParameters(9, ignore_eos_token=True, min_new_tokens=4)
