"""The weights: where a model lies, how its file is read, its tokenizer and its chat template."""
