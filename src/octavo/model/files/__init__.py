"""What lies on disk: GGUF and safetensors files, read by a reader that believes no number."""
