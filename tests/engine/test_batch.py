"""From a plan to arrays: which slot every token gets, and which rows of logits come back."""

from __future__ import annotations

from cache.cache_driver import make_request
from octavo.backends.base import NO_SLOT
from octavo.engine.batch import build_batch


def placed(tokens, table, *, computed=0, published=0, **params):
    request = make_request("r", tokens, **params)
    request.block_table = list(table)
    request.num_computed_tokens = computed
    request.num_published_blocks = published
    return request


def test_position_t_lies_in_block_t_div_16_at_offset_t_mod_16() -> None:
    table = [7, 2, 9, 4]
    request = placed(range(50), table)
    batch, _ = build_batch({request: 50}, 16)
    expected = [table[t // 16] * 16 + t % 16 for t in range(50)]
    assert batch.slot_mapping.tolist() == expected
    assert batch.slot_mapping[[0, 15, 16, 47, 48, 49]].tolist() == [112, 127, 32, 159, 64, 65]
    assert batch.positions.tolist() == list(range(50))
    assert batch.block_tables.tolist() == [table]


def test_ragged_sequences_lie_one_behind_the_other() -> None:
    whole = placed([10, 11, 12], [3])
    chunk = placed(range(20, 30), [0, 1, 2], computed=4, published=1)  # in the prompt's midst
    decoding = placed([40, 41], [5], computed=2)
    decoding.output_token_ids.append(42)
    batch, rows = build_batch({whole: 3, chunk: 3, decoding: 1}, 4)
    assert batch.input_ids.tolist() == [10, 11, 12, 24, 25, 26, 42]
    assert batch.positions.tolist() == [0, 1, 2, 4, 5, 6, 2]
    assert batch.slot_mapping.tolist() == [12, 13, 14, 4, 5, 6, 22]
    assert batch.query_start_loc.tolist() == [0, 3, 6, 7]
    assert batch.seq_lens.tolist() == [3, 7, 3]
    assert batch.block_tables.tolist() == [[3, 0, 0], [0, 1, 2], [5, 0, 0]]
    assert batch.logits_indices.tolist() == [2, 6]
    assert [row.sampled for row in rows] == [0, None, 1]
    assert (batch.num_tokens, batch.num_seqs) == (7, 3)


def test_what_lies_in_a_shared_block_is_computed_and_not_stored() -> None:
    request = placed(range(8), [6, 3], computed=7, published=2)
    batch, rows = build_batch({request: 1}, 4)
    assert batch.slot_mapping.tolist() == [NO_SLOT]
    assert batch.seq_lens.tolist() == [8]
    assert rows[0].sampled == 0


def test_a_resumed_request_computes_its_answer_like_a_prompt() -> None:
    request = placed([1, 2, 3], [0, 1])
    request.output_token_ids += [4, 5]
    batch, rows = build_batch({request: 5}, 4)
    assert batch.input_ids.tolist() == [1, 2, 3, 4, 5]
    assert batch.logits_indices.tolist() == [4]
    assert rows[0].sampled == 0


def test_a_scored_prompt_wants_the_row_before_each_of_its_tokens_once() -> None:
    request = placed(range(7), [0, 1], prompt_logprobs=1)
    seen = []
    for count in (2, 3, 2):
        batch, (row,) = build_batch({request: count}, 4)
        predicting = batch.positions[batch.logits_indices].tolist()
        targets = list(range(row.first_target, row.first_target + len(row.scored)))
        seen.append((predicting, targets, row.sampled))
        request.num_computed_tokens += count
        request.prompt_logprobs += [None] * (1 + max(targets) - len(request.prompt_logprobs))
    assert seen == [([0, 1], [1, 2], None), ([2, 3, 4], [3, 4, 5], None), ([5, 6], [6], 1)]
