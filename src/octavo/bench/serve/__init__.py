"""Load on an OpenAI server over HTTP: what it is asked, when, and what the answers took."""
