"""OpenAI's forms: bodies of requests read, answers written. Knows no transport."""
