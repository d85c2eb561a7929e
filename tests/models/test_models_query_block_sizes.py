import pytest

from modelfactory.models.query_block_sizes import is_worth_query_blocks, mean_keys, query_blocks_of


def test_blocks_meet_the_keys_of_their_window_up_to_their_own_end() -> None:
    assert query_blocks_of(300, None) == [(0, 128, 0), (128, 256, 0), (256, 300, 0)]
    assert query_blocks_of(1_024, 100) == [(0, 256, 0), (256, 512, 157), (512, 768, 413), (768, 1_024, 669)]


def test_mean_keys_are_those_of_all_queries() -> None:
    assert mean_keys(512, None) == (128 + 256 + 384 + 512) / 4
    assert mean_keys(1_024, 100) == (256 + 3 * 355) / 4


@pytest.mark.parametrize(
    ("n_rows", "n_heads", "seq_len", "is_worth"),
    [(1, 1, 63, False), (1, 1, 64, True), (8, 32, 1_024, True), (9, 32, 1_024, False)],
)
def test_rows_are_long_and_their_weights_few(
    n_rows: int, n_heads: int, seq_len: int, *, is_worth: bool
) -> None:
    assert is_worth_query_blocks(n_rows, n_heads, seq_len) is is_worth
