"""Tools: what a model may call, how its template writes a call, and how its text is read back."""
