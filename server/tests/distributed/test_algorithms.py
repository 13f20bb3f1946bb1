"""Which all-reduce algorithm is chosen, from timings as a machine may give them."""

import pytest

from text_generation_server.config.parallel import NodeConfig, ParallelConfig
from text_generation_server.distributed import group
from text_generation_server.distributed.algorithms import Algorithm, AlgorithmTable

KIB = 1024


def test_the_fastest_algorithm_is_chosen_for_each_size() -> None:
    algorithms = AlgorithmTable.fastest(
        {
            16 * KIB: {Algorithm.NCCL: 13.5, Algorithm.ONE_SHOT: 4.2, Algorithm.TWO_SHOTS: 6.0},
            256 * KIB: {Algorithm.NCCL: 15.0, Algorithm.ONE_SHOT: 8.0, Algorithm.TWO_SHOTS: 7.5},
            4096 * KIB: {Algorithm.NCCL: 40.0, Algorithm.TWO_SHOTS: 41.0},
        }
    )
    chosen = {kib: algorithms.of(kib * KIB) for kib in (1, 16, 17, 256, 257, 4096, 4097, 1 << 20)}
    assert chosen == {
        1: Algorithm.ONE_SHOT,
        16: Algorithm.ONE_SHOT,
        17: Algorithm.TWO_SHOTS,
        256: Algorithm.TWO_SHOTS,
        257: Algorithm.NCCL,
        4096: Algorithm.NCCL,
        4097: Algorithm.NCCL,
        1 << 20: Algorithm.NCCL,
    }
    assert algorithms.any_of_ours


@pytest.mark.parametrize("timings", [{}, {1 << 14: {Algorithm.NCCL: 5.0, Algorithm.ONE_SHOT: 5.0}}])
def test_the_library_is_kept_where_nothing_is_faster(timings: dict[int, dict[Algorithm, float]]) -> None:
    algorithms = AlgorithmTable.fastest(timings)
    assert algorithms.of(1 << 14) is Algorithm.NCCL
    assert not algorithms.any_of_ours


def test_what_keeps_to_the_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    node = NodeConfig(0, 1, "10.0.0.1", 29501)
    monkeypatch.setattr(group.kernels, "triton_enabled", lambda: True)
    assert group._nccl_only_because(ParallelConfig(), False) is None
    assert "--deterministic" in str(group._nccl_only_because(ParallelConfig(), True))
    assert "DISABLE_PEER_MEMORY" in str(group._nccl_only_because(ParallelConfig(peer_memory=False), False))
    assert "several nodes" in str(group._nccl_only_because(ParallelConfig(0, 2, node=node), False))
    monkeypatch.setattr(group.kernels, "triton_enabled", lambda: False)
    assert "custom kernels" in str(group._nccl_only_because(ParallelConfig(), False))
