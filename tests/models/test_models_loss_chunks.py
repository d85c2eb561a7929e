import pytest

from modelfactory.models.loss_chunks import rows_per_chunk


@pytest.mark.parametrize(
    ("vocab_size", "rows"), [(256, 32_768), (8_192, 1_024), (32_768, 1_024), (131_072, 512), (2**30, 1)]
)
def test_chunks_are_neither_flat_nor_large(vocab_size: int, rows: int) -> None:
    assert rows_per_chunk(vocab_size) == rows
