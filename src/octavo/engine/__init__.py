"""The loop: requests, the scheduler, the core that steps them, and the front for programs."""
