"""The HTTP front: OpenAI's API, and what watches it. Needs the extra `serve`."""
