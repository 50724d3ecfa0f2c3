"""The choice of a token: what a user may ask for, and how one token is drawn from logits."""
