"""The pages: which block holds which tokens, who shares it, and who dies when room is needed.

Knows no tensors, no tokenizer and no batches.
"""
