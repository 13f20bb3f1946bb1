"""What published `config.json` files say is what transformers makes of them."""

from pathlib import Path

import pytest
from support.comparing import assert_logits_are_equal
from support.families import made, write
from support.loading import load
from support.published import PUBLISHED
from support.published_newer import NEWER
from support.published_older import OLDER
from support.published_recurrent import RECURRENT
from support.published_remote import OF_REMOTE_CODE

CASES = {**PUBLISHED, **NEWER, **OLDER, **OF_REMOTE_CODE, **RECURRENT}


@pytest.mark.parametrize("name", list(CASES))
def test_a_published_file_means_what_it_means_to_transformers(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    reference = made(case)
    write(case, reference, tmp_path)
    assert_logits_are_equal(case, reference, load(tmp_path, impl="native"))
