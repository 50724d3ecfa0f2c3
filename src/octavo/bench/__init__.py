"""How fast it is, and how near to what the machine can do at all."""
