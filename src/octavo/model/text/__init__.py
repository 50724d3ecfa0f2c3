"""Text to tokens and back: tokenizers of every kind, and chat templates."""
