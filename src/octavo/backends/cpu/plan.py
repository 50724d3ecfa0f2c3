"""The numbers that steer the forward pass: names of columns, no arithmetic.

The compiled function is one for every model: what differs between models is data. `MODEL` are the
model's integers, `LAYER` a layer's, `MATRIX` a matrix's, `JOB` a step's. A place is an index into
the array of floats, -1 where the model has no such vector; matrices go by (first, count) in the
table of matrices.
"""

from __future__ import annotations

(
    NUM_LAYERS,
    HIDDEN,
    INNER,
    HEADS,
    KV_HEADS,
    HEAD_DIM,
    NUM_BLOCKS,
    K_AT,  # columns of a row of q, k, v where k and v begin
    V_AT,
    UP_AT,  # output of gate and up, packed as one matrix, where up begins; gate is at 0
    GATED,
    ACTIVATION,
    POST_NORMS,
    EMBEDDING,  # matrix
    HEAD,  # matrices
    HEAD_COUNT,
    POSITIONS,  # place of the learned positions, HIDDEN padded to 64 each
    OUT_NORM,
    OUT_NORM_BIAS,
    X_STRIDE,  # floats of a row: of the residual stream,
    Y_STRIDE,  # of what a matrix product reads,
    WIDE_STRIDE,  # of q, k, v, and of what the last product of a layer reads,
    LOGITS_STRIDE,  # and of the logits
) = range(23)
MODEL_SIZE = 23

(
    QKV,
    QKV_COUNT,
    OUTPUT,
    OUTPUT_COUNT,
    FEED,
    FEED_COUNT,
    DOWN,
    DOWN_COUNT,
    ATTN_NORM,
    ATTN_NORM_BIAS,
    FFN_NORM,
    FFN_NORM_BIAS,
    POST_ATTN_NORM,
    POST_ATTN_NORM_BIAS,
    POST_FFN_NORM,
    POST_FFN_NORM_BIAS,
    Q_NORM,
    Q_NORM_BIAS,
    K_NORM,
    K_NORM_BIAS,
    WINDOW,  # 0: none
    ROPE_DIM,  # 0: none
    ROPE_COS,
    ROPE_SIN,
    ROPE_INTERLEAVED,
) = range(25)
LAYER_SIZE = 25

SILU, GELU_TANH = range(2)
"""What ACTIVATION may be."""

EPS, ATTENTION_SCALE, EMBEDDING_SCALE = range(3)
"""The model's real numbers."""

NUM_TOKENS, NUM_SEQS, NUM_ROWS, TABLE_WIDTH, NUM_ITEMS, IS_SPLIT, SAMPLING = range(7)
"""A job's integers. NUM_ROWS are the wanted rows of logits; NUM_ITEMS and IS_SPLIT the step itself
sets. Where SAMPLING is not 0 the job is to sample: it is the address of what `sampling.py` reads.
"""
JOB_SIZE = 7

ITEM_SEQ, ITEM_ROW, ITEM_ROWS, ITEM_SEGMENT, ITEM_PART, ITEM_PARTS = range(6)
"""A work item of attention: rows of a sequence; which segment, -1 for all; where its state goes,
and on a tile's first item how many parts there are to merge."""
ITEM_SIZE = 6

(
    KIND,
    ROWS,
    PADDED_ROWS,
    COLUMNS,
    PLACE,  # in the arena of weights, in bytes
    RECORD,  # bytes of 64 outputs' 32 k's: scales, minima, codes; of floats, one k's
    MINIMA,  # where in a record they begin; 0, where the scales are, if there are none
    OFFSET,  # what is taken off a code, if there are no minima
    CODES,  # where in a record they begin
    WIDE,  # scales and minima are float32, not float16
    PARTS,  # scales to a row's 32 k's: 1, or 2 where each half has its own
    BIAS,  # place of the first, -1 for none
    OUT_AT,  # first column of the output
) = range(13)
"""A matrix's integers."""
MATRIX_SIZE = 13

U4, IQ4, U8, F16, BF16, F32 = range(6)
"""What KIND may be: IQ4 is 4 bits that a table turns into 8. Up to U8, rows are quantised first."""

(
    EMBED_PHASE,
    NORM_PHASE,
    QKV_PHASE,
    STORE_PHASE,
    ATTENTION_PHASE,
    MERGE_PHASE,
    OUTPUT_PHASE,
    FEED_PHASE,
    DOWN_PHASE,
    HEAD_PHASE,
) = range(10)
PHASES = (
    "embed",
    "norm",
    "qkv",
    "store",
    "attention",
    "merge",
    "output",
    "feed",
    "down",
    "head",
)
"""What a step's time is counted by; the same phase of all layers is one, and so are the phases that
norm or quantise rows."""
