"""Where models come from: a Python package, or the Hugging Face Hub."""
