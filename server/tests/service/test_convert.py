"""Messages of the contract become dataclasses field for field."""

from text_generation_server.engine import requests as r
from text_generation_server.pb import generate_pb2 as pb
from text_generation_server.service.convert import info_to_pb, masks_from_pb, plan_from_pb, reply_to_pb


def test_every_field_of_a_plan_arrives() -> None:
    # Values that float32 holds exactly.
    message = pb.Request(
        id=2**64 - 1,
        row=6,
        input_ids=[5, 8, 9],
        num_generated=2,
        cached_length=1,
        slots=[pb.SlotRange(start=4, length=3)],
        top_n_tokens=5,
        prefill_logprobs=True,
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
            min_new_tokens=4,
        ),
    )
    plan = plan_from_pb(
        pb.StepPlan(
            number=2**40,
            drop=[3, 4],
            admit=[message],
            grants=[pb.Grant(row=2, slots=[pb.SlotRange(start=9, length=1)])],
            chunks=[pb.Chunk(row=6, first=1, count=2)],
            decode=[1, 0],
            limit_ms=1500,
        )
    )
    assert (plan.number, plan.drop, plan.decode, plan.limit_ms) == (2**40, [3, 4], [1, 0], 1500)
    assert plan.grants == [r.Grant(2, (r.SlotRange(9, 1),))]
    assert plan.chunks == [r.Chunk(6, 1, 2)]
    (request,) = plan.admit
    assert (request.id, request.row, request.input_ids.tolist()) == (2**64 - 1, 6, [5, 8, 9])
    assert (request.num_generated, request.cached_length, request.slots) == (2, 1, (r.SlotRange(4, 3),))
    assert (request.top_n_tokens, request.prefill_logprobs) == (5, True)
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
        min_new_tokens=4,
    )


def test_every_field_of_masks_arrives() -> None:
    message = pb.StepMasks(number=3, rows=[4, 2], slots=[1, 7])
    message.writes.add(slot=1, bits=b"\x05\xff")
    message.writes.add(slot=7, only=pb.TokenIds(ids=[9, 1]))
    message.writes.add(slot=8).MergeFrom(pb.MaskWrite(**{"except": pb.TokenIds(ids=[2])}))  # type: ignore[arg-type]
    message.writes.add(slot=9)
    masks = masks_from_pb(message)
    assert (masks.number, masks.rows, masks.slots) == (3, [4, 2], [1, 7])
    assert [(write.slot, write.form, write.content.tolist()) for write in masks.writes] == [
        (1, r.MaskForm.BITS, [5, 255]),
        (7, r.MaskForm.ONLY, [9, 1]),
        (8, r.MaskForm.EXCEPT, [2]),
        (9, None, []),
    ]
    assert plan_from_pb(pb.StepPlan(decode=[1, 2], constrained=[2])).constrained == [2]


def test_every_field_of_a_reply_arrives() -> None:
    top = r.TopTokens(1, [8, 3], [-0.25, -1.5])
    reply = r.StepReply(
        7,
        rows=[4, 2],
        ids=[11, 12],
        logprobs=[-0.5, -0.75],
        top_tokens=[top],
        prompt_scores=[r.PromptScores(5, 64, [-2.0, -3.0], [r.TopTokens(0, [1], [-0.125])])],
        failures=[r.RequestFailure(9, 3, "numerical_error", "NaN")],
        timings=r.Timings(1, 2, 3, 4, 5),
        expert_loads=[[9, 3], [4, 8]],
    )
    assert reply_to_pb(reply) == pb.StepReply(
        number=7,
        rows=[4, 2],
        ids=[11, 12],
        logprobs=[-0.5, -0.75],
        top_tokens=[pb.TopTokens(index=1, ids=[8, 3], logprobs=[-0.25, -1.5])],
        prompt_scores=[
            pb.PromptScores(
                row=5, first=64, logprobs=[-2.0, -3.0], top_tokens=[pb.TopTokens(index=0, ids=[1], logprobs=[-0.125])]
            )
        ],
        failures=[pb.RequestFailure(request_id=9, row=3, reason="numerical_error", message="NaN")],
        timings=pb.Timings(host_ns=1, forward_ns=2, idle_ns=3, kernel_compilations=4, mask_wait_ns=5),
        expert_loads=[pb.ExpertLoad(pairs=[9, 3]), pb.ExpertLoad(pairs=[4, 8])],
    )


def test_every_field_of_info_arrives() -> None:
    info = r.ShardInfo("bfloat16", "cuda", 2, 64, 128, (2, 5), "triton", "0.1.0", "int8", recurrent=True)
    assert info_to_pb(info, "start 3") == pb.InfoResponse(
        dtype="bfloat16",
        device_type="cuda",
        world_size=2,
        vocab_size=64,
        max_position_embeddings=128,
        eos_token_ids=[2, 5],
        attention_impl="triton",
        version="0.1.0",
        kv_cache_dtype="int8",
        group="start 3",
        recurrent=True,
    )
