"""The arithmetic: one whole forward pass over a paged KV cache. Knows no requests."""
