"""What sampling parameters a request may have: each refusal names its field."""

import math
from dataclasses import replace

import pytest
from support.sampling import asking

from text_generation_server.engine.requests import Request, ServingLimits, SlotRange
from text_generation_server.engine.validation import check_request
from text_generation_server.errors import InvalidRequest

LIMITS = ServingLimits(max_batch_total_tokens=512, max_input_tokens=100, max_total_tokens=200, max_batch_size=4)
VOCAB = 2000


def check(request: Request) -> None:
    check_request(replace(request, slots=(SlotRange(0, 1),)), LIMITS, VOCAB)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (asking(presence_penalty=math.inf), "`presence_penalty` must be a finite number, not inf"),
        (asking(frequency_penalty=math.nan), "`frequency_penalty` must be a finite number, not nan"),
        (asking(min_p=-0.1), "`min_p` must be at least 0"),
        (asking(min_p=1.5), "`min_p` must be at least 0"),
        (asking(min_p=math.nan), "`min_p` must be at least 0"),
        (asking(top_n=21), "`top_n_tokens` must be at most 20"),
        (asking(logit_bias=((VOCAB, 1.0),)), "`logit_bias` must name token ids below the vocabulary size 2000"),
        (asking(logit_bias=((3, 1.0), (3, 2.0))), "`logit_bias` must hold each token id at most once"),
        (asking(logit_bias=((7, math.nan),)), "`logit_bias` of token 7 must be a finite number"),
        (asking(logit_bias=tuple((i, 1.0) for i in range(1025))), "`logit_bias` holds 1025 entries, more than 1024"),
    ],
)
def test_what_cannot_work_is_refused(request_: Request, message: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        check(request_)
    assert message in str(error.value)


def test_the_limits_themselves_are_allowed() -> None:
    check(asking(top_n=20, min_new_tokens=99, min_p=1.0, logit_bias=tuple((i, -1e30) for i in range(1024))))
